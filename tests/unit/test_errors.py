"""The six kinds: one level, each with its advice, and the advice can be made more exact."""

from __future__ import annotations

import pytest

from penstock import errors
from penstock.errors import PenstockError
from penstock.store.port import RefusedError

KINDS = {
    "InvalidError": False,
    "NotFoundError": False,
    "ConflictError": True,
    "UnavailableError": True,
    "FencedError": False,
    "CorruptError": False,
}


def test_there_are_six_kinds_one_level_under_the_base() -> None:
    assert {kind.__name__ for kind in PenstockError.__subclasses__()} == set(KINDS)
    for name in KINDS:
        assert getattr(errors, name).__bases__ == (PenstockError,)


@pytest.mark.parametrize(("name", "retry"), KINDS.items())
def test_each_kind_says_whether_to_retry_and_what_to_do(name: str, retry: bool) -> None:
    error = getattr(errors, name)("stream 'x' is odd")
    assert error.retry is retry
    assert error.hint
    assert str(error) == "stream 'x' is odd"


def test_a_hint_of_ones_own_replaces_the_hint_of_the_kind_for_that_error_only() -> None:
    usual = errors.InvalidError("bad").hint
    assert errors.InvalidError("bad", hint="use fewer").hint == "use fewer"
    assert errors.InvalidError("bad").hint == usual


def test_an_empty_hint_is_a_hint_of_ones_own() -> None:
    assert errors.InvalidError("bad", hint="").hint == ""


def test_a_refused_commit_is_unavailable_but_says_that_nothing_was_written() -> None:
    error = RefusedError("disk full")
    assert isinstance(error, errors.UnavailableError)
    assert error.retry
    assert "nothing was written" in error.hint
