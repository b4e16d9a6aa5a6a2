"""Messages to push, as producers give them and as they are stored. Pure.

Contract     `prepare_push` runs in the caller's thread, before and outside the one writer: it
             checks, hashes the shard keys and builds the bodies of the all-log. A shard key is text
             (UTF-8) or bytes; an empty one is none.
Slots        slot = xxh3_64(shard key) mod slots, the same in every process and for ever; vectors in
             tests/vectors/topicslots.json. Without a key: offset mod slots, which spreads evenly.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash

from penstock.codec.node import Body
from penstock.errors import InvalidError
from penstock.log.batch import TAG_BYTES_MAX, Tag, build_columns, encode_tag

Hashes = npt.NDArray[np.uint64]
Slots = npt.NDArray[np.uint16]


class PreparedPush(msgspec.Struct, frozen=True):
    bodies: list[Body]
    hashes: Hashes  # of the shard keys; 0 where there is none
    keyed: npt.NDArray[np.bool_] | None  # None: all of them have a key

    @property
    def count(self) -> int:
        return len(self.hashes)

    @property
    def size(self) -> int:
        return sum(len(body.stored) for body in self.bodies)


def prepare_push(data: Sequence[bytes], keys: Sequence[Tag] | None = None) -> PreparedPush:
    """Messages and their shard keys, two columns of one length."""
    if keys is None:
        bodies = build_columns(data)
        return PreparedPush(bodies, np.zeros(len(data), np.uint64), np.zeros(len(data), np.bool_))
    if len(keys) != len(data):
        raise InvalidError(f"{len(data)} messages have {len(keys)} shard keys")
    raw = _encoded(keys)
    bodies = build_columns(data, tags=raw)
    hashes, keyed = hash_keys(raw)
    return PreparedPush(bodies, hashes, keyed)


def _encoded(keys: Sequence[Tag]) -> list[bytes]:
    try:
        raw = [key.encode() for key in keys]  # type: ignore[union-attr]
    except (AttributeError, UnicodeEncodeError):
        raw = [_encoded_key(i, key) for i, key in enumerate(keys)]
    longest = max(map(len, raw), default=0)
    if longest > TAG_BYTES_MAX:
        raise InvalidError(f"a shard key of {longest} bytes; at most {TAG_BYTES_MAX} are allowed")
    return raw


def _encoded_key(i: int, key: Tag) -> bytes:
    try:
        return encode_tag(key)
    except InvalidError as error:
        text = str(error).replace("tag", "shard key", 1)
        raise InvalidError(f"message {i}: {text}", hint=error.hint) from None


def hash_keys(keys: Sequence[bytes]) -> tuple[Hashes, npt.NDArray[np.bool_] | None]:
    hashes = np.fromiter(map(xxhash.xxh3_64_intdigest, keys), np.uint64, len(keys))
    if all(keys):
        return hashes, None
    return hashes, np.fromiter(map(bool, keys), np.bool_, len(keys))


def slots_of(hashes: Hashes, keyed: npt.NDArray[np.bool_] | None, first: int, slots: int) -> Slots:
    """The slots of messages with neighbouring offsets, from `first` on."""
    found = hashes % np.uint64(slots)
    if keyed is not None:
        offsets = np.arange(first, first + len(hashes), dtype=np.uint64)
        found = np.where(keyed, found, offsets % np.uint64(slots))
    return found.astype(np.uint16)


def slot_of(key: bytes, slots: int) -> int:
    """The slot of one shard key."""
    return xxhash.xxh3_64_intdigest(key) % slots
