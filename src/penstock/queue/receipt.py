"""Receipts: what a consumer shows to settle a message that it claimed. Pure.

    receipt    base64url of: queue (u64) | message id (u64) | lease number (u64) | mac (16 bytes)
    mac        keyed BLAKE2s over the 24 bytes before it: a third of HMAC-SHA256's time

Contract     A lease number is never used twice in a queue, and a queue's number never either, so
             that a receipt names one lease for ever. The key lives in the store. `open_receipt`
             gives None for anything that `make_receipt` did not make with this key.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import struct

import msgspec

KEY_BYTES = 32
SECRET = b"receipts"

_BODY = struct.Struct("<QQQ")
_MAC_BYTES = 16


class Receipt(msgspec.Struct, frozen=True, gc=False):
    queue: int
    message_id: int
    lease: int


def make_receipt(key: bytes, queue: int, message_id: int, lease: int) -> str:
    body = _BODY.pack(queue, message_id, lease)
    return base64.urlsafe_b64encode(body + _mac(key, body)).decode()


def open_receipt(key: bytes, text: str | bytes) -> Receipt | None:
    try:
        given = text.encode() if isinstance(text, str) else text
        raw = base64.urlsafe_b64decode(given)
    except (binascii.Error, ValueError):
        return None
    # The decoder skips what it does not know; a receipt has one text.
    if len(raw) != _BODY.size + _MAC_BYTES or base64.urlsafe_b64encode(raw) != given:
        return None
    body = raw[: _BODY.size]
    if not hmac.compare_digest(_mac(key, body), raw[_BODY.size :]):
        return None
    return Receipt(*_BODY.unpack(body))


def _mac(key: bytes, body: bytes) -> bytes:
    return hashlib.blake2s(body, key=key, digest_size=_MAC_BYTES).digest()
