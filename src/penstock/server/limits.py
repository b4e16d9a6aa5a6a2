"""What a server lets its connections use. Settings only."""

from __future__ import annotations

import msgspec

from penstock.codec.resp import Limits as RequestLimits


class Limits(msgspec.Struct, frozen=True):
    request: RequestLimits = RequestLimits()
    connections: int = 50_000
    #: What a connection may have sent without being answered, before reading from it pauses.
    waiting_bytes: int = 8 << 20
    waiting_requests: int = 10_000
    #: The same for one that is blocked. It must be read from, or its end would go unseen; so beyond
    #: this it is cut.
    blocked_bytes: int = 128 << 20
    #: Of all unfinished requests together; who goes beyond it is cut.
    unfinished_bytes: int = 1 << 30
    #: Replies that a client has not read: from the first on it gets no more, beyond the second it
    #: is cut, and it is cut if it reads nothing at all for so long.
    unread_bytes: int = 1 << 20
    output_bytes: int = 256 << 20
    unread_seconds: float = 60.0
    #: How long commands in flight may take when the server closes.
    close_seconds: float = 5.0
