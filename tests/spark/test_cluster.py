"""The cluster fixture is a cluster, and a session of ours runs on it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from spark.cluster import Cluster

pytestmark = pytest.mark.slow


class Answers(NamedTuple):
    ran: list[tuple[str, str]]
    missing: str


@pytest.fixture(scope="module")
def answers(cluster: Cluster) -> Answers:
    return Answers(**json.loads(cluster.run("cluster_driver")))


def test_a_job_runs_on_both_workers_with_the_interpreter_of_the_driver(
    cluster: Cluster, answers: Answers
) -> None:
    places = [Path(folder).relative_to(cluster.folder).parts[0] for folder, _ in answers.ran]
    assert sorted(places) == ["worker-0", "worker-1"]
    assert {python for _, python in answers.ran} == {sys.executable}


def test_an_executor_without_the_package_says_what_to_install(answers: Answers) -> None:
    assert f"the Python of this Spark executor ({sys.executable} on " in answers.missing
    assert "has no spark: install penstock[spark] on every node" in answers.missing
