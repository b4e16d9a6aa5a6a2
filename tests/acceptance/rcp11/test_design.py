"""docs/streams.md: what is ours. Rows and points that the RCP's own files do not hold already."""

from __future__ import annotations

import pytest
import redis

from acceptance.rcp11.doors import (
    NEVER_MS,
    PATIENCE_MS,
    PATIENCE_SECONDS,
    Config,
    Door,
    Entry,
    blocked,
    expected,
    numbered,
    offsets_of,
    until,
)
from acceptance.rcp11.python_door import PythonDoor
from acceptance.rcp11.resp_door import RespDoor
from penstock import ConflictError, InvalidError
from penstock.codec.node import decode_node

# ---- TGROUP -----------------------------------------------------------------------------------


def test_creating_a_group_again_with_the_same_settings_changes_nothing(
    door: Door, full: str
) -> None:
    """Table, TGROUP CREATE: so that every worker may begin with it."""
    door.group_create(full, "g", max_pending=5, dead="d")
    door.read_group(full, "g", 3, retry_ms=NEVER_MS)
    before = door.group_info(full, "g")
    door.group_create(full, "g", max_pending=5, dead="d")
    assert door.group_info(full, "g") == before


def test_creating_a_group_again_with_other_settings_is_a_conflict(door: Door, full: str) -> None:
    """Table, TGROUP CREATE: two programs disagree, and should hear of it."""
    door.group_create(full, "g", max_pending=5)
    for max_pending, dead in ((6, None), (5, "d")):
        with pytest.raises(ConflictError):
            door.group_create(full, "g", max_pending=max_pending, dead=dead)
    assert door.group_info(full, "g").max_pending == 5


def test_info_without_a_group_lists_all_of_them(door: Door, full: str) -> None:
    """Table, TGROUP INFO key [g]; TINFO counts them."""
    for group in ("b", "a", "ż"):
        door.group_create(full, group)
    assert [group.name for group in door.groups(full)] == ["a", "b", "ż"]
    assert door.groups(full)[1] == door.group_info(full, "b")
    assert door.info(full).groups == 3


def test_group_info_is_a_map(resp: RespDoor, name: str) -> None:
    """Table, TGROUP INFO: a map in RESP3, the same flat in RESP2."""
    resp.write_many(name, numbered(3))
    resp.read_group(name, "g", 2, retry_ms=NEVER_MS)
    wanted = {
        b"name": b"g",
        b"last_offset": 1,
        b"ack_offset": 0,
        b"pending": 2,
        b"expired": 0,
        b"skipped": 0,
        b"max_pending": 1000,
        b"dead": None,
    }
    assert resp.ask("TGROUP", "INFO", name, "g") == wanted
    port: int = resp.client.get_connection_kwargs()["port"]
    with redis.Redis(port=port, protocol=2) as client:
        flat = client.execute_command("TGROUP", "INFO", name, "g")
    assert dict(zip(flat[::2], flat[1::2], strict=True)) == wanted


def test_moving_a_group_takes_later_entries_out_of_the_pending_list(door: Door, full: str) -> None:
    """TGROUP SET: those at or after the new offset come again as new, earlier ones stay."""
    door.read_group(full, "g", 8, retry_ms=NEVER_MS)
    door.group_set(full, "g", 5)
    info = door.group_info(full, "g")
    assert (info.last_offset, info.pending, info.ack_offset) == (4, 5, 0)
    assert [entry.offset for entry in door.group_pending(full, "g")] == [0, 1, 2, 3, 4]
    assert (info.expired, info.skipped) == (0, 0)
    again = door.read_group(full, "g", 100, retry_ms=NEVER_MS)
    assert again == expected(range(5, 10))
    assert {entry.deliveries for entry in door.group_pending(full, "g")} == {1}


def test_moving_a_group_forwards_keeps_what_is_pending(door: Door, full: str) -> None:
    """TGROUP SET: what was delivered before still waits for its acknowledgement."""
    door.read_group(full, "g", 3, retry_ms=NEVER_MS)
    door.group_set(full, "g", "new")
    info = door.group_info(full, "g")
    assert (info.last_offset, info.pending, info.ack_offset) == (9, 3, 0)
    assert door.ack(full, "g", range(0, 3)) == 3


def test_setting_behind_the_end_is_refused(door: Door, full: str) -> None:
    """TGROUP SET: an offset that is there, or the next one."""
    door.group_create(full, "g")
    with pytest.raises(InvalidError):
        door.group_set(full, "g", 11)
    assert door.group_info(full, "g").last_offset == -1


# ---- compaction and groups --------------------------------------------------------------------


def test_groups_skip_compacted_entries_and_count_them(door: Door, name: str) -> None:
    """Groups skip evicted and compacted entries; pending ones leave the list; both are counted."""
    door.write_many(name, [(b"a", b"%d" % n) for n in range(4)] + [(b"b", b"4")])
    assert offsets_of(door.read_group(name, "pending", 2, retry_ms=1)) == [0, 1]
    door.group_create(name, "fresh")
    door.configure(name, Config(compact=True))
    until(lambda: offsets_of(door.read(name, 0, 9)) == [None, None, None, 3, 4])
    assert offsets_of(door.read_group(name, "fresh", 9)) == [3, 4]
    assert door.group_info(name, "fresh").skipped == 3
    assert offsets_of(door.read_group(name, "pending", 9)) == [3, 4]
    info = door.group_info(name, "pending")
    assert (info.pending, info.skipped) == (0, 3)


# ---- TCONFIG, TINFO, TLEN, TKEYS, TDEL --------------------------------------------------------


def test_retention_by_count(door: Door, full: str) -> None:
    """Retention by count, bytes and time per stream: now, and with every write."""
    door.configure(full, Config(max_count=4))
    until(lambda: door.length(full) == 4)
    assert door.read(full, 6, 9) == expected(range(6, 10))
    door.write_many(full, numbered(3, 10))
    until(lambda: door.length(full) == 4)
    assert door.read(full, 8, 9) == [None, *expected(range(9, 13))]


def test_retention_by_bytes(door: Door, name: str) -> None:
    """The same by stored bytes, in whole nodes: the newest stay."""
    for start in range(0, 8000, 1000):
        door.write_many(name, numbered(1000, start))
    limit = door.info(name).bytes // 2
    door.configure(name, Config(max_bytes=limit))
    until(lambda: door.info(name).bytes <= limit)
    info = door.info(name)
    assert 0 < info.length < 8000
    assert door.read(name, info.first, 9999) == expected(range(info.first, 8000))


def test_retention_by_age(door: Door, full: str) -> None:
    """The same by age: what is too old goes though nobody writes."""
    door.configure(full, Config(max_age_ms=1))
    until(lambda: door.length(full) == 0)
    assert door.info(full)[:2] == (10, 9)
    door.configure(full, Config(max_age_ms=NEVER_MS))
    door.write_many(full, numbered(1, 10))
    assert door.read(full, 10, 1) == expected(range(10, 11))


def test_what_is_configured_is_shown_and_can_be_taken_back(door: Door, name: str) -> None:
    """TCONFIG and TINFO: 0 on the wire, and None in Python, is no limit."""
    config = Config(max_count=7, max_bytes=70_000, max_age_ms=NEVER_MS, compact=True)
    door.configure(name, config)
    assert door.info(name).config == config
    door.configure(name, Config())
    assert door.info(name).config == Config()


def test_tconfig_sets_what_it_is_given_and_shows_it_when_given_nothing(
    resp: RespDoor, name: str
) -> None:
    """TCONFIG: what is not named stays."""
    assert resp.ask("TCONFIG", name, "MAXLEN", 7, "COMPACT", "YES") == b"OK"
    assert resp.ask("TCONFIG", name, "maxage", 3_600_000) == b"OK"
    wanted = {b"maxlen": 7, b"maxbytes": 0, b"maxage": 3_600_000, b"compact": b"yes"}
    assert resp.ask("TCONFIG", name) == wanted
    assert resp.ask("TCONFIG", name, "MAXLEN", 0, "COMPACT", "no") == b"OK"
    wanted |= {b"maxlen": 0, b"compact": b"no"}
    assert resp.ask("TCONFIG", name) == wanted


def test_tinfo_is_a_map(resp: RespDoor, name: str) -> None:
    """TINFO: a stream that was never written has no time of creation."""
    info = resp.ask("TINFO", name)
    assert info == {
        b"first": 0,
        b"last": -1,
        b"length": 0,
        b"bytes": 0,
        b"created_at": None,
        b"groups": 0,
        b"maxlen": 0,
        b"maxbytes": 0,
        b"maxage": 0,
        b"compact": b"no",
    }


def test_length_counts_the_offsets_that_can_be_read(door: Door, full: str, name: str) -> None:
    """TLEN."""
    assert door.length(f"{name}-none") == 0
    assert door.length(full) == 10
    door.evict(full, keep=3)
    assert door.length(full) == 3


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("*", ["-a", "-ab", "-b", "-ż"]),
        ("-a*", ["-a", "-ab"]),
        ("-?", ["-a", "-b", "-ż"]),
        ("-[bc]", ["-b"]),
        ("-[^b]", ["-a", "-ż"]),
        ("-[a-b]", ["-a", "-b"]),
        ("-ab", ["-ab"]),
        ("-A", []),
        ("", []),
    ],
)
def test_keys_match_a_pattern_as_in_redis(
    door: Door, name: str, pattern: str, found: list[str]
) -> None:
    """TKEYS, `db.streams`: names in the order of their bytes."""
    for suffix in ("-b", "-ab", "-a", "-ż"):
        door.write(f"k{name}{suffix}", b"", b"")
    door.write(f"other-{name}", b"", b"")
    assert door.keys(f"k{name}{pattern}") == [f"k{name}{suffix}" for suffix in found]


def test_deleting_tells_whether_there_was_a_stream(door: Door, full: str) -> None:
    """TDEL, `delete`: entries, groups and settings go with it."""
    door.read_group(full, "g", 3, retry_ms=NEVER_MS)
    door.configure(full, Config(max_count=1000))
    assert door.delete(full) is True
    assert door.delete(full) is False
    assert full not in door.keys("*")
    assert (door.read(full, 0, 9), door.groups(full)) == ([], [])
    door.write_many(full, numbered(2))
    assert door.info(full).config == Config()
    assert door.read_group(full, "g", 9) == expected(range(2))


def test_tdel_takes_many_keys(resp: RespDoor, name: str) -> None:
    """TDEL key ...: how many of them there were."""
    for suffix in "abc":
        resp.write(name + suffix, b"", b"")
    assert resp.ask("TDEL", f"{name}a", f"{name}none", f"{name}c") == 2
    assert resp.keys(f"{name}*") == [f"{name}b"]


# ---- what the Python contract has beyond the RCP ----------------------------------------------


def test_entries_have_a_time_and_may_have_meta(door: Door, name: str) -> None:
    """Every attribute of the Python contract has a field on the wire (FULL, META)."""
    door.write_many(name, [(b"t", b"x", b"m"), (b"", b"y", b"")])
    door.write(name, b"u", b"z")
    first, second, third = door.read_full(name, 0, 9)
    assert first is not None
    assert second is not None
    assert third is not None
    assert (first[:3], first.meta) == ((0, b"t", b"x"), b"m")
    assert (second[:3], second.meta) == ((1, b"", b"y"), None)
    assert (third[:3], third.meta) == ((2, b"u", b"z"), None)
    assert first.time_ms == second.time_ms <= third.time_ms
    created_ms = door.info(name).created_ms
    assert created_ms is not None
    assert created_ms <= first.time_ms


def test_full_goes_with_groups_and_nulls(resp: RespDoor, name: str) -> None:
    """TREAD FULL: five fields, everywhere."""
    resp.write_many(name, [(b"t", b"x", b"m"), (b"", b"y", b"")])
    (entry,) = resp.ask("TREAD", name, 0, 1, "GROUP", "g", "FULL")
    assert entry == resp.ask("TREAD", name, 0, 1, "FULL")[0]
    assert (entry[:3], entry[4]) == ([0, b"t", b"x"], b"m")
    resp.evict(name, up_to=0)
    assert resp.ask("TREAD", name, 1, 2, "FULL", "REVERSE")[1] is None


def test_raw_returns_the_bytes_of_macro_nodes(resp: RespDoor, name: str) -> None:
    """TREAD RAW: edges, which offsets the answer stands for, nodes and which of their entries."""
    resp.write_many(name, numbered(2500))
    resp.evict(name, up_to=499)
    edges, span, *pieces = resp.ask("TREAD", name, 100, 1000, "RAW")
    assert (edges, span) == ([500, 2499], [100, 1100])
    found: list[tuple[int, bytes, bytes]] = []
    for value, start, stop in pieces:
        node = decode_node(value, "a node")
        offsets = range(node.first + start, node.first + stop)
        tags, data = node.tag_list(start, stop), node.data_list(start, stop)
        found += zip(offsets, tags, data, strict=True)
    assert found == expected(range(500, 1100))
    assert resp.ask("TREAD", name, 2500, 10, "RAW") == [[500, 2499], [2500, 2500]]


def test_a_tag_that_is_not_utf_8_is_shown_with_surrogates(door: Door, name: str) -> None:
    """Tags and entries are bytes; Python shows tags as `str` with `surrogateescape`."""
    door.write(name, b"\xff\xfe", b"x")
    assert door.read(name, 0, 1) == [Entry(0, b"\xff\xfe", b"x")]
    if isinstance(door, PythonDoor):
        (message,) = door.db.stream(name).read(0)
        assert message is not None
        assert message.tag == "\udcff\udcfe"
        # And goes back as it came.
        door.db.stream(name).write(b"y", tag=message.tag)
        assert door.read(name, 1, 1) == [Entry(1, b"\xff\xfe", b"y")]


# ---- idempotent producers ---------------------------------------------------------------------


def test_the_same_producer_and_sequence_again_return_the_first_answer(
    door: Door, name: str
) -> None:
    """PRODUCER id seq: and nothing is written, whatever comes in between."""
    assert door.write_many(name, numbered(3), producer=("p", 7)) == range(3)
    assert door.write_many(name, numbered(3), producer=("p", 7)) == range(3)
    door.write_many(name, numbered(2, 3))
    assert door.write_many(name, numbered(3), producer=("p", 7)) == range(3)
    assert door.read(name, 0, 99) == expected(range(5))


def test_another_sequence_or_producer_or_stream_writes(door: Door, name: str) -> None:
    """PRODUCER id seq: the pair counts, per stream."""
    assert door.write_many(name, numbered(1), producer=("p", 1)) == range(1)
    assert door.write_many(name, numbered(1), producer=("p", 2)) == range(1, 2)
    assert door.write_many(name, numbered(1), producer=("q", 2)) == range(2, 3)
    assert door.write_many(f"{name}-b", numbered(1), producer=("p", 2)) == range(1)
    assert door.length(name) == 3


def test_a_sequence_below_the_latest_is_refused(door: Door, name: str) -> None:
    """PRODUCER id seq: a producer counts upwards."""
    door.write_many(name, numbered(1), producer=("p", 5))
    with pytest.raises(InvalidError):
        door.write_many(name, numbered(1), producer=("p", 4))
    assert door.length(name) == 1


# ---- blocked readers --------------------------------------------------------------------------


def test_a_write_wakes_exactly_the_readers_it_can_serve(door: Door, name: str) -> None:
    """Blocked readers: of a group as many as there are entries; of other streams none."""
    door.group_create(name, "g")
    elsewhere = blocked(door, lambda: door.read(f"{name}-b", 0, 1, block_ms=PATIENCE_MS))
    readers = [
        blocked(door, lambda: door.read_group(name, "g", 1, block_ms=PATIENCE_MS)) for _ in range(4)
    ]
    door.write_many(name, numbered(2))
    shares = [reader.result(PATIENCE_SECONDS) for reader in readers[:2]]
    assert shares == [expected(range(1)), expected(range(1, 2))]
    until(lambda: door.waiting() == 3)
    assert not any(reader.done() for reader in readers[2:])
    assert not elsewhere.done()
    door.write_many(name, numbered(2, 2))
    assert [r.result(PATIENCE_SECONDS) for r in readers[2:]] == [[e] for e in expected(range(2, 4))]
    door.write(f"{name}-b", b"t", b"x")
    assert elsewhere.result(PATIENCE_SECONDS) == [Entry(0, b"t", b"x")]
