"""What goes to executors says clearly when the package is missing there.

Contract     shipped(object): for `__reduce__` of whatever Spark sends to its executors (readers,
             writers). The object arrives as it was; where a package that it needs is not
             installed, the task fails with a sentence that says so, and what to do.
How          Pickle names classes, so an executor imports our package before a line of it has run.
             Here it gets the bytes and a function that unpacks them. The function travels by
             value, because cloudpickle writes out what claims to belong to `__main__`; so it may
             use nothing but its arguments and what it imports itself.
Not here     how to get the package there: docs/spark.md
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType


def shipped(instance: object) -> tuple[Callable[[bytes], object], tuple[bytes]]:
    """The value of `__reduce__` for an object whose state is its `__dict__`."""
    from pyspark import cloudpickle

    dumps: Callable[[object], bytes] = cloudpickle.dumps
    return _by_value(_unpack), (dumps((type(instance), instance.__dict__)),)


def _unpack(data: bytes) -> object:
    import pickle
    import platform
    import sys

    try:
        kind, state = pickle.loads(data)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"the Python of this Spark executor ({sys.executable} on {platform.node()}) has no "
            f"{error.name}: install penstock[spark] on every node, with the same "
            "versions as on the driver, or let PYSPARK_PYTHON name a Python that has it "
            "(see docs/spark.md)",
            name=error.name,
        ) from error
    instance = object.__new__(kind)
    instance.__dict__.update(state)
    return instance


def _by_value(function: Callable[[bytes], object]) -> Callable[[bytes], object]:
    assert isinstance(function, FunctionType)
    copy = FunctionType(function.__code__, {"__builtins__": __builtins__}, function.__name__)
    copy.__module__ = "__main__"
    return copy
