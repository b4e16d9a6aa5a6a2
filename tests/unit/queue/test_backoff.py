"""Back-off: how long a failed message waits."""

from __future__ import annotations

import pytest

from penstock.errors import CorruptError, InvalidError
from penstock.queue.backoff import (
    DEFAULT,
    Backoff,
    backoff_text,
    check_backoff,
    fixed,
    parse_backoff,
)


def test_it_grows_by_its_factor_up_to_its_cap() -> None:
    backoff = Backoff(base=1, factor=3, cap=20, jitter=0)
    assert [backoff.wait_ms(n, 0.5) for n in range(1, 6)] == [1000, 3000, 9000, 20000, 20000]


def test_jitter_makes_it_shorter_by_at_most_its_fraction() -> None:
    backoff = Backoff(base=8, factor=1, cap=8, jitter=0.25)
    assert [backoff.wait_ms(1, chance) for chance in (0.0, 0.5, 0.999999)] == [8000, 7000, 6001]


@pytest.mark.parametrize("attempts", [1, 1001, 65535])
@pytest.mark.parametrize("backoff", [DEFAULT, Backoff(1, 100, 300, 1), Backoff(0, 2, 5, 0)])
def test_no_number_of_attempts_is_too_many(backoff: Backoff, attempts: int) -> None:
    assert 0 <= backoff.wait_ms(attempts, 0.0) <= 300_000


def test_a_number_is_always_the_same_wait_and_none_the_default() -> None:
    assert check_backoff(None) == DEFAULT
    assert check_backoff(0) == fixed(0.0)
    assert [fixed(1.5).wait_ms(n, 0.9) for n in (1, 2, 50)] == [1500] * 3


@pytest.mark.parametrize(
    "value",
    [
        -1,
        1e9,
        float("nan"),
        True,
        "5",
        Backoff(base=9, cap=8),
        Backoff(base=float("nan")),
        Backoff(factor=0.5),
        Backoff(factor=float("nan")),
        Backoff(jitter=1.1),
    ],
)
def test_what_makes_no_sense_is_refused(value: object) -> None:
    with pytest.raises(InvalidError):
        check_backoff(value)


def test_stored_text_gives_the_same_policy_or_is_corrupt() -> None:
    backoff = Backoff(0.1, 1.7, 33.3, 0.25)
    assert parse_backoff(backoff_text(backoff)) == backoff
    for text in ("", "1 2 3", "a b c d", "9 2 8 0"):
        with pytest.raises(CorruptError):
            parse_backoff(text)
