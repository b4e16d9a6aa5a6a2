"""Lanes: which message is next, for however many workers."""

from __future__ import annotations

from penstock.client.lanes import Lanes
from penstock.client.topicshapes import TopicMessage


def message(offset: int, key: str = "", slot: int = 0) -> TopicMessage:
    return TopicMessage("t", 0, offset, 1, slot, key.encode(), b"", 0)


def taken(lanes: Lanes) -> TopicMessage:
    found = lanes.take()
    assert found is not None
    return found


def test_one_key_is_taken_one_after_the_other_others_at_once() -> None:
    lanes = Lanes(keyed=True)
    a0, a1, b2, c3, none4, none5 = messages = [
        message(0, "a"), message(1, "a"), message(2, "b"), message(3, "c"), message(4), message(5),
    ]  # fmt: skip
    lanes.add(messages)
    assert [lanes.take() for _ in range(6)] == [a0, b2, c3, none4, none5, None]
    assert (lanes.waiting, lanes.running) == (1, 5)
    assert lanes.handled(a0)
    assert lanes.take() is None, "what became of it is not told yet"
    lanes.free(a0)
    assert lanes.take() is a1
    for each in (a1, b2, c3, none4, none5):
        assert lanes.handled(each)
        lanes.free(each)
    assert (lanes.waiting, lanes.running, lanes.take()) == (0, 0, None)
    assert lanes._lanes == {}, "nothing is left of keys that came once"


def test_without_keys_everything_is_one_lane_in_order() -> None:
    lanes = Lanes(keyed=False)
    first, second = message(0, "a"), message(1, "b")
    lanes.add([first, second])
    assert lanes.take() is first
    assert lanes.take() is None
    lanes.handled(first)
    lanes.free(first, again=True)
    assert lanes.take() is first
    lanes.handled(first)
    lanes.free(first)
    assert lanes.take() is second


def test_what_was_dropped_is_not_taken_and_leaves_room() -> None:
    lanes = Lanes(keyed=True)
    messages = [message(i, f"k{i % 3}", slot=i % 3) for i in range(9)]
    lanes.add(messages)
    running = taken(lanes)
    gone = lanes.drop(lambda each: each._slot == 0)
    assert sorted(each.offset for each in gone) == [3, 6], "what runs goes on"
    assert lanes.waiting == 6
    assert lanes.handled(running)
    lanes.free(running)
    rest = []
    while (found := lanes.take()) is not None:
        rest.append(found.offset)
        lanes.handled(found)
        lanes.free(found)
    assert sorted(rest) == [1, 2, 4, 5, 7, 8]
    assert (lanes.waiting, lanes._lanes) == (0, {})


def test_a_lane_that_begins_anew_comes_in_order_and_what_ran_was_for_nothing() -> None:
    lanes = Lanes(keyed=True)
    a = [message(i, "a") for i in range(5)]
    lanes.add(a)
    for each in a[:3]:
        assert lanes.take() is each
        lanes.handled(each)
        lanes.free(each)  # finished, not committed
    assert lanes.take() is a[3]
    lanes.redo(a[:3])  # the first of them was refused
    assert lanes.take() is None, "the one that runs is waited for"
    assert not lanes.handled(a[3])
    lanes.free(a[3])
    order = []
    while (found := lanes.take()) is not None:
        order.append(found.offset)
        assert lanes.handled(found)
        lanes.free(found)
    assert order == [0, 1, 2, 3, 4]
    assert (lanes.waiting, lanes.running) == (0, 0)


def test_what_is_handled_for_nothing_is_not_dropped_before_that_ends() -> None:
    lanes = Lanes(keyed=False)
    a = [message(0, "a"), message(1, "b", slot=1), message(2, "a"), message(3, "b", slot=1)]
    lanes.add(a)
    for each in a[:2]:
        assert lanes.take() is each
        lanes.handled(each)
        lanes.free(each)
    assert lanes.take() is a[2]
    lanes.redo(a[:2])
    assert lanes.drop(lambda each: True) == [a[1], a[3]], "others of its slot stay with it"
    assert not lanes.handled(a[2])
    lanes.free(a[2])
    assert lanes.drop(lambda each: True) == [a[0], a[2]]
    assert (lanes.waiting, lanes.running, lanes.take(), lanes._lanes) == (0, 0, None, {})


def test_a_lane_that_waits_for_the_answer_about_a_failure_can_begin_anew() -> None:
    lanes = Lanes(keyed=True)
    first, second = message(0, "a"), message(1, "a")
    lanes.add([first, second])
    assert lanes.take() is first
    assert lanes.handled(first)
    lanes.redo([first])
    lanes.free(first)  # the answer that came too late
    assert lanes.take() is first
    assert lanes.waiting == 1


def test_after_a_loss_nothing_is_left_but_what_runs_and_that_is_for_nothing() -> None:
    lanes = Lanes(keyed=True)
    old = [message(0, "a"), message(1, "a"), message(2, "b"), message(3, "b")]
    lanes.add(old)
    running, failed = taken(lanes), taken(lanes)
    assert lanes.handled(failed)
    assert lanes.clear() == 3
    assert (lanes.waiting, lanes.take()) == (0, None)
    new = [message(0, "a"), message(2, "b")]
    lanes.add(new)
    assert lanes.take() is new[1], "its lane is free"
    assert lanes.take() is None, "the key of the one that runs is not handled twice at once"
    assert not lanes.handled(running)
    lanes.free(running)
    assert lanes.take() is new[0]
