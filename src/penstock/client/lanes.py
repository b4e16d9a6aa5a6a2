"""Which message is handled next, by however many workers: one lane per shard key. Plain state.

Contract     Messages of one lane are taken in order, and the next one only when the one before is
             `free`d; different lanes are taken at once. Messages without a key have a lane each.
             With one worker everything is one lane, which is the order of arrival.
Void         Whoever handles a message while its lane starts anew (`redo`, `clear`) has worked for
             nothing: `begun_anew` tells it when it comes back. Its lane waits for that.
Threads      None here: who calls holds a lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence

from penstock.client.topicshapes import TopicMessage

#: Shard keys, offsets of messages without one, or 0 where all share a lane.
LaneKey = bytes | int


class Lane:
    __slots__ = ("busy", "key", "queued", "running", "void", "waiting")

    def __init__(self, key: LaneKey) -> None:
        self.key = key
        self.waiting: deque[TopicMessage] = deque()
        self.busy: TopicMessage | None = None  # nothing else is taken meanwhile
        self.running = False  # somebody handles it; else what became of it is being told
        self.void = False
        self.queued = False  # among those that may be taken from


class Lanes:
    def __init__(self, *, keyed: bool) -> None:
        self._keyed = keyed
        self._lanes: dict[LaneKey, Lane] = {}
        self._ready: deque[Lane] = deque()
        #: How many messages nobody has begun, and how many are being handled.
        self.waiting = 0
        self.running = 0

    def _key(self, message: TopicMessage) -> LaneKey:
        return (message._key or message.offset) if self._keyed else 0

    def are_one(self, message: TopicMessage, other: TopicMessage) -> bool:
        """Whether these share a lane."""
        return self._key(message) == self._key(other)

    def add(self, messages: Iterable[TopicMessage]) -> None:
        for message in messages:
            lane = self._lane(message)
            lane.waiting.append(message)
            self.waiting += 1
            if not lane.queued and lane.busy is None:
                self._queue(lane)

    def _lane(self, message: TopicMessage) -> Lane:
        key = self._key(message)
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = Lane(key)
        return lane

    def _queue(self, lane: Lane) -> None:
        if lane.queued or lane.busy is not None:
            return
        if lane.waiting:
            lane.queued = True
            self._ready.append(lane)
        else:
            self._lanes.pop(lane.key, None)

    def take(self) -> TopicMessage | None:
        while self._ready:
            lane = self._ready.popleft()
            lane.queued = False
            if not lane.waiting:  # dropped meanwhile
                self._queue(lane)
                continue
            message = lane.waiting.popleft()
            lane.busy = message
            lane.running = True
            self.waiting -= 1
            self.running += 1
            return message
        return None

    @property
    def ready(self) -> int:
        """How many can be taken at once."""
        return len(self._ready)

    def handled(self, message: TopicMessage) -> bool:
        """A worker is back from it; its lane stays busy. -> whether it was not for nothing"""
        lane = self._lanes[self._key(message)]
        assert lane.busy is message
        self.running -= 1
        lane.running = False
        void, lane.void = lane.void, False
        return not void

    def free(self, message: TopicMessage, *, again: bool = False) -> None:
        """The next one of its lane may be taken; with `again` that is the same."""
        lane = self._lanes.get(self._key(message))
        if lane is None or lane.busy is not message:
            return  # the lane has started anew
        lane.busy = None
        if again:
            lane.waiting.appendleft(message)
            self.waiting += 1
        self._queue(lane)

    def redo(self, messages: Sequence[TopicMessage]) -> None:
        """These of one lane come again, in this order, before whatever comes after them; what is
        being handled of it comes after them too, once more."""
        lane = self._lane(messages[0])
        back = list(messages)
        if lane.busy is not None:
            if lane.running:
                lane.void = True
            if lane.busy not in back:
                back.append(lane.busy)
            if not lane.running:
                lane.busy = None
        lane.waiting.extendleft(reversed(back))
        self.waiting += len(back)
        self._queue(lane)

    def drop(self, gone: Callable[[TopicMessage], bool]) -> list[TopicMessage]:
        """Forget messages that nobody has begun. -> those. What somebody handles for nothing stays,
        and so does its slot: whoever got it next would handle the key at the same time."""
        dropped: list[TopicMessage] = []
        for lane in list(self._lanes.values()):
            stays = lane.busy._slot if lane.void and lane.busy is not None else None
            left: deque[TopicMessage] = deque()
            for message in lane.waiting:
                goes = message._slot != stays and gone(message)
                (dropped if goes else left).append(message)
            lane.waiting = left
            if not left and not lane.queued:
                self._queue(lane)
        self.waiting -= len(dropped)
        return dropped

    def clear(self) -> int:
        """Forget everything; what is being handled is for nothing. -> how many were there"""
        count = self.waiting + self.running
        self.waiting = 0
        for lane in list(self._lanes.values()):
            lane.waiting.clear()
            if lane.running:
                lane.void = True
            else:
                lane.busy = None
                if not lane.queued:
                    self._queue(lane)
        return count
