"""A graph on a cluster: master, two workers, executors that find the broker themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark.cluster import Cluster
from spark.graph_world import World

pytestmark = pytest.mark.slow


def test_a_graph_runs_on_a_cluster(cluster: Cluster, tmp_path: Path) -> None:
    with World(tmp_path, step_max=0) as world:
        world.count_to(20_000)
        assert cluster.run("graph_cluster_driver", str(tmp_path)).split() == ["20000"]
        world.compare(20_000)
