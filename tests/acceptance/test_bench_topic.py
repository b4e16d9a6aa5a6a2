"""`penstock bench topic`: its arithmetic, its table, and one short run."""

from __future__ import annotations

import io
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from penstock.cli.bench import topic_table
from penstock.cli.bench_topic import CONSUMERS, TopicCase, TopicResult, measure_topics


def test_a_case_is_met_where_ours_is_as_much_as_wanted() -> None:
    assert TopicCase("x", 100.0, 50.0, 1.0).ratio == 2.0
    assert TopicCase("x", 50.0, 50.0, 1.0).met
    assert not TopicCase("x", 49.0, 50.0, 1.0).met
    assert TopicCase("x", 1.0, 50.0).met, "nothing is wanted of it"


def test_the_table_shows_both_sides() -> None:
    console = Console(width=120, record=True, file=io.StringIO())
    case = TopicCase("pushed and acknowledged", 30_000.0, 20_000.0, 1.0)
    console.print(topic_table(TopicResult([case], CONSUMERS, 1000)))
    text = console.export_text()
    for part in ("pushed and acknowledged", "30,000", "20,000", "1.50x", "at least 1x"):
        assert part in text


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("redis-server") is None, reason="redis-server is not installed")
def test_a_short_run_measures_both_sides(tmp_path: Path) -> None:
    result = measure_topics(tmp_path, seconds=0.5, turns=1, report=lambda note: None)
    assert [case.name for case in result.cases] == ["pushed and acknowledged", "pushed meanwhile"]
    assert all(case.ours > 0 and case.redis > 0 for case in result.cases)
    assert result.messages >= 2000
