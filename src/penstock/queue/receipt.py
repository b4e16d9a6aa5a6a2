"""Receipts: what a consumer shows to settle a message that it claimed. Pure.

    receipt    hexadecimal: queue (u64) | message id (u64) | lease number (u64) | mac (16 bytes)
    mac        keyed BLAKE2s over the 24 bytes before it: a third of HMAC-SHA256's time

Contract     A lease number is never used twice in a queue, and a queue's number never either, so
             that a receipt names one lease for ever. The key lives in the store. `open_receipts`
             opens nothing that `make_receipts` did not make with this key. Both work on many at
             once, as requests have them: one by one they would take twice as long.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

KEY_BYTES = 32
SECRET = b"receipts"

#: What a receipt says.
LEASE = np.dtype(
    [
        ("queue", "<u8"),  # its incarnation
        ("message_id", "<u8"),
        ("number", "<u8"),
    ]
)
Leases = npt.NDArray[np.void]

_MAC_BYTES = 16
_BODY_BYTES = LEASE.itemsize
_BYTES = _BODY_BYTES + _MAC_BYTES


def make_receipts(key: bytes, leases: Leases) -> list[str]:
    """In their order."""
    signed = _signed(key, leases.tobytes(), _BODY_BYTES).hex()
    return [signed[at : at + 2 * _BYTES] for at in range(0, len(signed), 2 * _BYTES)]


def open_receipts(key: bytes, texts: Sequence[str]) -> tuple[Leases, list[bool]]:
    """-> the leases of those that are good, and which of them that are"""
    raw = _opened(key, texts)
    if raw is not None:  # nearly always
        good = [True] * len(texts)
    else:
        each = [_opened(key, [text]) for text in texts]
        good = [one is not None for one in each]
        raw = b"".join(one for one in each if one is not None)
    leases = np.frombuffer(raw, np.dtype([("lease", LEASE), ("mac", f"V{_MAC_BYTES}")]))["lease"]
    return leases, good


def _opened(key: bytes, texts: Sequence[str]) -> bytes | None:
    """Their bytes if all of them are good."""
    if set(map(len, texts)) - {2 * _BYTES}:
        return None
    text = "".join(texts)
    try:
        raw = bytes.fromhex(text)
    except ValueError:
        return None
    # Python would also take capitals and spaces: there is one spelling.
    if raw.hex() != text or not hmac.compare_digest(_signed(key, raw, _BYTES), raw):
        return None
    return raw


def _signed(key: bytes, raw: bytes, step: int) -> bytes:
    """The bodies that begin at every `step` bytes, each with its mac."""
    keyed = hashlib.blake2s(key=key, digest_size=_MAC_BYTES)
    parts: list[bytes] = []
    for at in range(0, len(raw), step):
        body = raw[at : at + _BODY_BYTES]
        mac = keyed.copy()
        mac.update(body)
        parts += body, mac.digest()
    return b"".join(parts)
