"""What crashes leave behind and nobody needs: found by `penstock check`, removed by `--repair`.

Contract     A leftover is harmless: it takes room, nothing refers to it. Found are payload objects
             whose message was never committed. The reverse, a message whose payload object is gone,
             is a finding: that cannot be repaired, only restored. Whoever calls this is the
             location's one writer, so nothing that is looked at is on its way.
"""

from __future__ import annotations

import msgspec

from penstock.codec.keys import KeyType, open_key, prefix, prefix_end
from penstock.codec.payload import UriPayload, decode_payload, is_reserved_uri
from penstock.log.check import Finding
from penstock.store.objects import Objects
from penstock.store.port import Store


class Leftover(msgspec.Struct, frozen=True):
    what: str
    where: str
    number: int  # of the payload object


async def find_leftovers(store: Store, objects: Objects) -> tuple[list[Leftover], list[Finding]]:
    """-> what may go, and what is missing"""
    wanted: set[int] = set()
    low = prefix(KeyType.PAYLOAD)
    async for rows in store.scan(low, prefix_end(low)):
        for key, value in rows:
            payload = decode_payload(value)
            if isinstance(payload, UriPayload) and is_reserved_uri(payload.uri):
                wanted.add(open_key(key, KeyType.PAYLOAD).u64_key("message id"))
    there = set(await objects.numbers())
    leftovers = [
        Leftover("a payload whose message was never committed", f"payloads/{number}", number)
        for number in sorted(there - wanted)
    ]
    findings = [
        Finding(f"message {number}", "its payload object is missing")
        for number in sorted(wanted - there)
    ]
    return leftovers, findings


async def remove(leftovers: list[Leftover], objects: Objects) -> None:
    for leftover in leftovers:
        await objects.delete(leftover.number)
