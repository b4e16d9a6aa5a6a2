"""A topic as plain lists and dicts, one message at a time: what test_topic_model.py compares with.

There are no pages here, no operations and no bytes. Which slot goes to whom is not computed: the
model takes the plan, says whether it is even and as small a change as it can be (or, asked for,
spreads the backlog), and knows what follows from it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec
import xxhash

#: Under which ownership a message runs: token and epoch.
Run = tuple[int, int]


class Message(msgspec.Struct, eq=False):
    offset: int
    key: bytes
    slot: int
    routed: bool = False
    emitted: bool = False
    run: Run | None = None
    ended: str = ""  # acked or errored
    attempts: int = 0

    @property
    def waits(self) -> bool:
        return not self.run and not self.ended


class Slot(msgspec.Struct, eq=False):
    owner: int = 0
    heir: int = 0
    epoch: int = 1

    @property
    def planned(self) -> int:
        return self.heir or self.owner


class Replay(msgspec.Struct, eq=False):
    messages: list[Message]
    fed: int  # how many of them


class Model:
    def __init__(self, slots: int) -> None:
        self.slots = [Slot() for _ in range(slots)]
        self.log: list[Message] = []
        self.fed = 0
        self.paused = False
        self.consumers: dict[str, int] = {}
        self.replays: dict[int, Replay] = {}
        self.redelivered = 0
        self.replayed = 0
        #: offset, space -> attempts, final
        self.errors: dict[tuple[int, int], tuple[int, bool]] = {}

    # -- messages

    def push(self, keys: Sequence[bytes], *, fed: bool = True) -> range:
        first = len(self.log)
        for offset, key in enumerate(keys, first):
            hashed = xxhash.xxh3_64_intdigest(key) if key else offset
            self.log.append(Message(offset, key, hashed % len(self.slots)))
        if fed and self.fed == first:
            self.feed()
        return range(first, len(self.log))

    def feed(self) -> None:
        self.fed = len(self.log)
        self.route()

    def route(self) -> None:
        if self.consumers and not self.paused:
            for message in self.log[: self.fed]:
                message.routed = True

    def space(self, space: int) -> list[Message]:
        if not space:
            return [message for message in self.log[: self.fed] if message.routed]
        replay = self.replays.get(space)
        return [] if replay is None else replay.messages[: replay.fed]

    def waiting(self, space: int, token: int) -> list[Message]:
        """What this consumer would get, in order."""
        return [
            message
            for message in self.space(space)
            if message.waits
            and self.slots[message.slot].owner == token
            and not self.slots[message.slot].heir
        ]

    def emit(self, space: int, messages: Sequence[Message], token: int) -> None:
        for message in messages:
            if message.emitted:
                self.redelivered += 1
            elif space:
                self.replayed += 1
            message.emitted = True
            message.run = token, self.slots[message.slot].epoch
        self.end_replays()

    def find(self, space: int, offset: int, run: Run) -> Message | None:
        """The message, if it runs so."""
        return next((m for m in self.space(space) if m.offset == offset and m.run == run), None)

    def end(self, message: Message, how: str) -> None:
        message.run = None
        message.ended = how
        self.end_replays()

    def end_replays(self) -> None:
        for job, replay in list(self.replays.items()):
            if replay.fed == len(replay.messages) and all(m.ended for m in replay.messages):
                del self.replays[job]

    def replay(self, job: int, first: int, end: int) -> None:
        copies = [Message(m.offset, m.key, m.slot) for m in self.log[first:end]]
        self.replays[job] = Replay(copies, 0)

    # -- slots

    def busy(self, slot: int) -> bool:
        spaces = [self.log, *(replay.messages for replay in self.replays.values())]
        return any(m.run and m.slot == slot for messages in spaces for m in messages)

    def move(self, slot: int, owner: int) -> None:
        found = self.slots[slot]
        found.owner, found.heir, found.epoch = owner, 0, found.epoch + 1
        for messages in [self.log, *(replay.messages for replay in self.replays.values())]:
            for message in messages:
                if message.slot == slot:
                    message.run = None

    def adopt(self, plan: Mapping[int, int], *, fence: bool = False) -> int:
        """Slots get these owners, at once or when nothing of them runs. -> how many moved"""
        live = set(self.consumers.values())
        before = [slot.planned if slot.planned in live else 0 for slot in self.slots]
        # One whose heir is gone is its owner's again.
        before = [
            planned or (slot.owner if slot.owner in live else 0)
            for planned, slot in zip(before, self.slots, strict=True)
        ]
        assert set(plan.values()) <= live | {0}
        if live:
            shares = sorted((list(plan.values()).count(token) for token in live), reverse=True)
            assert max(shares) - min(shares) <= 1, "evenly"
            held = sorted((before.count(token) for token in live), reverse=True)
            least = len(plan) - sum(map(min, held, shares))
            changed = sum(plan[slot] != owner for slot, owner in enumerate(before))
            if changed > least:
                assert fence, "as few as possible"
                assert self.unevenness(plan) < self.unevenness(dict(enumerate(before)))
        moved = 0
        for number, slot in enumerate(self.slots):
            owner = plan[number]
            if slot.owner == owner:
                slot.heir = 0
            elif slot.owner in live and self.busy(number) and not fence:
                slot.heir = owner
            else:
                self.move(number, owner)
                moved += 1
        self.route()
        return moved

    def unevenness(self, owners: Mapping[int, int]) -> int:
        """Of what is left to those who own the slots so."""
        left = Counter(owners[m.slot] for m in self.log[: self.fed] if not m.ended)
        return sum(count**2 for count in left.values())

    def hand_over(self) -> None:
        for number, slot in enumerate(self.slots):
            if slot.heir and not self.busy(number):
                self.move(number, slot.heir)
        self.route()

    # -- what is seen

    def counters(self) -> dict[str, int]:
        log = self.log
        counts = {
            "inserted": len(log),
            "routed": sum(m.routed for m in log),
            "emitted": sum(m.emitted for m in log),
            "acked": sum(m.ended == "acked" for m in log),
            "errored": sum(m.ended == "errored" for m in log),
            "redelivered": self.redelivered,
            "replayed": self.replayed,
            "running": sum(m.run is not None for m in log),
        }
        counts["waiting"] = sum(m.waits for m in log)
        return counts
