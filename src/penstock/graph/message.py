"""What a processor's function sees and gives back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Message(msgspec.Struct, frozen=True, gc=False):
    """An entry of an input; as an output only `data` and `tag` count."""

    data: bytes
    tag: str = ""
    stream: str = ""  # which input it comes from
    offset: int = -1
    time_ms: int = 0
    meta: bytes | None = None  # of an output of another processor: its hash

    @property
    def time(self) -> datetime:
        """When it was written."""
        return _EPOCH + timedelta(milliseconds=self.time_ms)


class Stop(Exception):  # noqa: N818  # a request, not an error
    """Raised by a function: the message is not handled. The processor stops, and tries it again
    after a pause."""
