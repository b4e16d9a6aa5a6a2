"""`penstock bench queue`: its arithmetic, its tables, and one short run beside nobody."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.cli import bench_queue_peers
from penstock.cli.bench import backlog_table, queue_table
from penstock.cli.bench_queue import (
    DISK,
    IN_PROCESS,
    RESP,
    BacklogResult,
    QueueCase,
    QueueResult,
    measure_queues,
)
from penstock.cli.bench_queue_peers import start_peers
from penstock.cli.output import result_console

RATES = QueueCase(
    "publish", "messages/s", {IN_PROCESS: 300.0, RESP: 90.0, "redis": 100.0, "x": 50.0}, wanted=2.0
)
LATENCY = QueueCase(
    "p50", "ms", {IN_PROCESS: 4.0, RESP: 6.0, "redis": 2.0}, wanted=5.0, lower=True, absolute=True
)


def test_ours_is_judged_by_the_best_of_the_others() -> None:
    assert RATES.best == 100.0
    assert (RATES.judged(IN_PROCESS), RATES.judged(RESP)) == (3.0, 0.9)
    assert (RATES.met(IN_PROCESS), RATES.met(RESP)) == (True, False)


def test_the_disk_alone_is_nobody_to_be_compared_with() -> None:
    with_disk = QueueCase(
        "publish", "messages/s", {IN_PROCESS: 300.0, RESP: 90.0, "redis": 100.0, DISK: 900.0}
    )
    assert with_disk.best == 100.0


def test_a_latency_is_judged_by_itself_and_less_is_better() -> None:
    assert LATENCY.best == 2.0
    assert LATENCY.judged(RESP) == 6.0
    assert (LATENCY.met(IN_PROCESS), LATENCY.met(RESP)) == (True, False)


def test_beside_nobody_nothing_is_judged() -> None:
    alone = QueueCase("publish", "messages/s", {IN_PROCESS: 1.0, RESP: 1.0}, wanted=2.0)
    assert (alone.best, alone.judged(RESP), alone.met(RESP)) == (None, None, None)


def test_the_tables_show_ratios_and_who_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    backlogs = [BacklogResult(10_000, 2.0, 2**20), BacklogResult(5_000_000, 3.0, 2**21)]
    rates = QueueCase("all", "messages/s", {**RATES.results, DISK: 123456.0}, wanted=2.0)
    result = QueueResult([rates, LATENCY], {"rabbitmq": "not installed"}, backlogs)
    result_console().print(queue_table(result))
    result_console().print(backlog_table(result))
    printed = capsys.readouterr().out
    assert "123,456/s" in printed
    assert "3.00x, 0.90x" in printed
    assert "at least 2x" in printed
    assert "rabbitmq: not installed" in printed
    assert "5,000,000" in printed
    assert "ratio 1.50x, wanted at most 1.3x" in printed


@pytest.fixture
def _nobody_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("find_redis", "find_rabbit", "find_postgres"):
        monkeypatch.setattr(bench_queue_peers, name, lambda: None)


@pytest.mark.usefixtures("_nobody_installed")
def test_a_short_run_measures_every_case_of_ours(tmp_path: Path) -> None:
    notes: list[str] = []
    result = measure_queues(tmp_path, seconds=0.1, turns=1, backlog=12_000, report=notes.append)
    assert result.missing == dict.fromkeys(("redis", "rabbitmq", "postgresql"), "not installed")
    assert len(result.cases) == 4
    for case in result.cases:
        disk = [] if case.unit == "ms" else [DISK]
        assert list(case.results) == [IN_PROCESS, RESP, *disk]
        assert all(value > 0 for value in case.results.values())
    assert [backlog.messages for backlog in result.backlogs] == [10_000, 12_000]
    assert all(backlog.rss_bytes > 2**20 for backlog in result.backlogs)
    assert notes


def test_a_peer_that_does_not_start_is_named_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("find_redis", "find_rabbit"):
        monkeypatch.setattr(bench_queue_peers, name, lambda: None)
    (tmp_path / "initdb").write_text("#!/bin/sh\necho no luck >&2\nexit 1\n")
    (tmp_path / "initdb").chmod(0o755)
    tmp_path.chmod(0o755)
    monkeypatch.setattr(bench_queue_peers, "find_postgres", lambda: str(tmp_path / "postgres"))
    monkeypatch.setattr(bench_queue_peers, "_unprivileged", dict)
    pytest.importorskip("psycopg")
    with start_peers(tmp_path / "peers", lambda _: None) as peers:
        assert peers.running == []
        assert peers.missing["postgresql"] == "did not start: no luck"
