"""What is shipped arrives as it was, or says what is missing."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from types import ModuleType

import pytest
from pyspark import cloudpickle

from penstock.spark.ship import shipped


class Parcel:
    def __init__(self, content: object) -> None:
        self.content = content

    def __reduce__(self) -> tuple[Callable[[bytes], object], tuple[bytes]]:
        return shipped(self)


@pytest.fixture
def packed(monkeypatch: pytest.MonkeyPatch) -> bytes:
    """A parcel in a parcel, of a module that only this test has."""
    module = ModuleType("only_here")
    monkeypatch.setitem(sys.modules, "only_here", module)
    monkeypatch.setattr(module, "Parcel", Parcel, raising=False)
    monkeypatch.setattr(Parcel, "__module__", "only_here")
    dumps: Callable[[object], bytes] = cloudpickle.dumps
    return dumps(Parcel({"inner": Parcel(7)}))


def test_what_is_shipped_arrives_as_it_was(packed: bytes) -> None:
    arrived = pickle.loads(packed)
    assert type(arrived) is Parcel
    assert isinstance(arrived.content, dict)
    assert arrived.content["inner"].content == 7


def test_where_the_package_is_missing_the_error_says_so(
    packed: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "only_here")
    with pytest.raises(ModuleNotFoundError, match="has no only_here: install penstock") as error:
        pickle.loads(packed)
    assert error.value.name == "only_here"


def test_unpacking_needs_nothing_of_ours(packed: bytes) -> None:
    """The outer bytes name no module of this package; only the inner ones may."""
    names = [name for name in (b"penstock.spark.ship", b"penstock.spark\x94") if name in packed]
    assert names == []
