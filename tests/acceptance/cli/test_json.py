"""JSON of commands: fields, and nothing of how they travel between processes."""

from __future__ import annotations

import importlib
import json
import pkgutil
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

import penstock
from penstock.cli.output import plain
from penstock.graph import Graph, Message
from penstock.graph.requests import Start
from penstock.source.requests import OpenSource


def tagged() -> Iterator[tuple[str, str]]:
    """(field, tag) of every struct of the package that has one."""
    for module in pkgutil.walk_packages(penstock.__path__, "penstock."):
        if ".spark" not in module.name and not module.name.endswith("__main__"):
            found = importlib.import_module(module.name)
            for value in vars(found).values():
                if isinstance(value, type) and issubclass(value, msgspec.Struct):
                    config = value.__struct_config__
                    if config.tag_field is not None:
                        yield config.tag_field, str(config.tag)


def fields(value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for key, each in value.items():
            yield key, str(each)
            yield from fields(each)
    elif isinstance(value, list):
        for each in value:
            yield from fields(each)


@pytest.fixture
def full(db: penstock.Database) -> None:
    """Something of every kind."""
    db.stream("clicks").write_many([b"a", b"b"])
    db.stream("clicks").read_group("g", 1)
    queue = db.create_queue("jobs", max_attempts=1)
    db.publish_many([penstock.Publish(b"x", to="jobs"), penstock.Publish(b"y", to="jobs")])
    if claimed := queue.claim(1):
        queue.fail([claimed[0].receipt])
    db.topic("work").push(b"x", "k")
    db.sources.ask(OpenSource("files", "/srv/files"))
    graph = Graph("copying")

    @graph.pipe("clicks", "copies")
    def copy(message: Message) -> bytes:
        return message.data

    db.graphs.ask(Start(graph.topologies[0]))


@pytest.mark.usefixtures("full")
@pytest.mark.parametrize(
    "words",
    [
        "stream ls", "stream info clicks", "stream read clicks", "queue ls", "queue show jobs",
        "queue peek jobs", "queue dlq ls jobs", "topic ls", "topic show work",
        "topic replay work 0", "graph status", "graph show copying", "ingest sources",
        "top -n 1", "doctor",
    ],
)  # fmt: skip
def test_no_command_shows_a_tag(sh: Any, words: str) -> None:
    shown = sh.json(*words.split())
    assert shown, "otherwise nothing is tested"
    assert not set(fields(shown)) & set(tagged())


def test_plain_values_keep_all_but_the_tag() -> None:
    class Inner(msgspec.Struct, tag="inner", rename={"b": "c"}):
        b: int

    value = {"list": [Inner(1)], "tuple": (Inner(2), None), 3: "x"}
    assert json.loads(msgspec.json.encode(plain(value))) == {
        "list": [{"c": 1}], "tuple": [{"c": 2}, None], "3": "x",
    }  # fmt: skip
