"""How the suite is shared out when it runs in two processes (`make test`).

A file's tests stay together, so that what a module sets up is set up once. All of Spark's stay
together: a session of it takes ten seconds to start and a gigabyte to run. They come first, because
they take the longest.
"""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def on_spark(item: pytest.Item) -> bool:
        return item.path.parent.name == "spark" and item.path.parent.parent.name == "tests"

    for item in items:
        item.add_marker(pytest.mark.xdist_group("spark" if on_spark(item) else str(item.path)))
    items.sort(key=lambda item: not on_spark(item))
