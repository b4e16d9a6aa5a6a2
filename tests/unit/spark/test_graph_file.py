"""Graphs in Python files."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.errors import InvalidError, NotFoundError
from penstock.spark.graphfile import PREFIX, load_graph

GRAPH = "from penstock.graph import Graph\n"


@pytest.fixture(autouse=True)
def modules() -> Iterator[None]:
    """Loading leaves a module and a folder behind: they are needed while the graph runs."""
    path, known = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - known:
        if name.startswith(PREFIX) or name == "beside":
            del sys.modules[name]


def test_the_only_graph_of_a_file_needs_no_name(tmp_path: Path) -> None:
    file = tmp_path / "one.py"
    file.write_text(GRAPH + "graph = Graph('one')\nalias = graph\n")
    assert load_graph(str(file)).name == "one"
    assert load_graph(f"{file}:alias").name == "one"


def test_of_several_one_is_named(tmp_path: Path) -> None:
    file = tmp_path / "two.py"
    file.write_text(GRAPH + "a = Graph('first')\nb = Graph('second')\n")
    assert load_graph(f"{file}:b").name == "second"
    with pytest.raises(InvalidError, match="has 2 graphs"):
        load_graph(str(file))
    with pytest.raises(NotFoundError, match="no graph 'c'"):
        load_graph(f"{file}:c")


def test_modules_beside_the_file_are_found(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("NAME = 'found'\n")
    (tmp_path / "uses.py").write_text(GRAPH + "import beside\ng = Graph(beside.NAME)\n")
    assert load_graph(str(tmp_path / "uses.py")).name == "found"


def test_a_file_does_not_run_itself(tmp_path: Path) -> None:
    file = tmp_path / "script.py"
    file.write_text(GRAPH + "g = Graph('g')\nif __name__ == '__main__':\n    raise SystemExit\n")
    assert load_graph(str(file)).name == "g"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("x = 1\n\nx.y\n", "line 3: AttributeError"),
        ("x = (\n", "line 1: SyntaxError"),
        ("import sys\nsys.exit(3)\n", "line 2: SystemExit: 3"),
    ],
)
def test_what_is_wrong_in_a_file_is_told_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, told: str
) -> None:
    file = tmp_path / "bad.py"
    file.write_text(text)
    monkeypatch.chdir(tmp_path)
    for place in (str(file), "bad.py", f"../{tmp_path.name}/bad.py"):
        with pytest.raises(InvalidError, match=told):
            load_graph(place)
    assert PREFIX + "bad" not in sys.modules


def test_files_that_are_not_there_or_have_none_are_not_found(tmp_path: Path) -> None:
    (tmp_path / "none.py").write_text("")
    for name in ("none.py", "missing.py"):
        with pytest.raises(NotFoundError):
            load_graph(str(tmp_path / name))
