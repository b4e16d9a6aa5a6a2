"""A graph that lies in a Python file: `penstock graph run FILE.py[:graph]`.

Contract     `load_graph` runs the file, as a module of its own that is not `__main__`, and gives
             the graph in it: the one that is named, or the only one. Modules beside the file can be
             imported. What is wrong is an InvalidError that names file and line.
             `travels_by_value` tells Spark's pickle that functions of such a file are shipped as
             they are: workers cannot import it.
"""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from penstock.errors import InvalidError, NotFoundError
from penstock.graph.model import Graph

#: Names of modules that were made here begin so.
PREFIX = "penstock_graph_file_"


def load_graph(place: str) -> Graph:
    """`place`: FILE.py or FILE.py:name"""
    path, name = _parted(place)
    if not path.is_file():
        raise NotFoundError(f"there is no file {path}", hint="penstock graph run FILE.py[:graph]")
    found = {key: value for key, value in vars(_load(path)).items() if isinstance(value, Graph)}
    if name is not None:
        if name not in found:
            raise NotFoundError(f"{path} has no graph {name!r}", hint=_listed(found))
        return found[name]
    different = {id(graph): graph for graph in found.values()}
    if not different:
        raise NotFoundError(f"{path} has no graph", hint='graph = Graph("name")')
    if len(different) > 1:
        raise InvalidError(f"{path} has {len(different)} graphs", hint=_listed(found))
    return next(iter(different.values()))


def travels_by_value(function: Callable[..., Any]) -> None:
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    if module is not None and module.__name__.startswith(PREFIX):
        from pyspark.cloudpickle import cloudpickle

        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]


def _parted(place: str) -> tuple[Path, str | None]:
    head, colon, name = place.rpartition(":")
    if colon and name.isidentifier():
        return Path(head), name
    return Path(place), None


def _listed(found: dict[str, Graph]) -> str:
    return f"it has {', '.join(found)}: name one as FILE.py:{next(iter(found))}" if found else ""


def _load(path: Path) -> ModuleType:
    name = PREFIX + path.stem
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InvalidError(f"{path} is no Python file", hint="its name ends with .py")
    module = importlib.util.module_from_spec(spec)
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise InvalidError(
            f"{path}{_line(spec.origin, error)}: {type(error).__name__}: {error}"
        ) from error
    return module


def _line(origin: str | None, error: BaseException) -> str:
    """`origin`: the file, as Python calls it: by its whole path, however it was named."""
    if isinstance(error, SyntaxError) and error.filename == origin:
        return f", line {error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    at = [frame.lineno for frame in frames if frame.filename == origin]
    return f", line {at[-1]}" if at else ""
