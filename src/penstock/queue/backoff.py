"""How long a failed message waits before it comes again. Pure.

Contract     `Backoff` is exponential: base, base * factor, base * factor², … up to cap, each made
             shorter by up to the fraction `jitter`. A plain number of seconds is the same wait
             every time; 0 is at once. Stored as text in the queue's config.
"""

from __future__ import annotations

import math

import msgspec

from penstock.errors import CorruptError, InvalidError

#: Nobody waits longer than a year by a policy.
_CAP_MAX = 366 * 24 * 3600.0


class Backoff(msgspec.Struct, frozen=True):
    """How long a failed message waits: `base` seconds, `factor` times more after every attempt, at
    most `cap`; a random part of it, up to `jitter`, is taken off."""

    base: float = 1.0  # seconds before the second attempt
    factor: float = 2.0
    cap: float = 300.0  # seconds, at most
    jitter: float = 0.5  # 0: none; 1: anything between nothing and the whole wait

    def wait_ms(self, attempts: int, chance: float) -> int:
        """After so many attempts; `chance` is a random number 0 <= chance < 1."""
        # The power may overflow a float long before the cap would stop it.
        exponent = min(attempts - 1, 1000 if self.factor <= 2 else 64)
        wait = min(self.base * self.factor**exponent, self.cap)
        return math.ceil(1000 * wait * (1 - self.jitter * chance))


DEFAULT = Backoff()


def fixed(seconds: float) -> Backoff:
    return Backoff(seconds, 1.0, seconds, 0.0)


def check_backoff(value: object) -> Backoff:
    """None is the default, a number of seconds always the same wait."""
    if value is None:
        return DEFAULT
    if isinstance(value, int | float) and not isinstance(value, bool):
        if not 0 <= value <= _CAP_MAX:
            raise InvalidError(f"a back-off of {value} seconds; 0 to {_CAP_MAX:.0f} are allowed")
        return fixed(float(value))
    if not isinstance(value, Backoff):
        raise InvalidError(
            f"backoff is None, seconds or a penstock.Backoff, not {type(value).__name__}"
        )
    for part in msgspec.structs.astuple(value):
        if not isinstance(part, int | float) or isinstance(part, bool):
            raise InvalidError(f"backoff: {part!r} is not a number")
    if not 0 <= value.base <= value.cap <= _CAP_MAX:
        raise InvalidError(f"backoff: 0 <= base <= cap <= {_CAP_MAX:.0f} seconds, not {value}")
    if not 1 <= value.factor <= 100:
        raise InvalidError(f"backoff: a factor of {value.factor}; 1 to 100 are allowed")
    if not 0 <= value.jitter <= 1:
        raise InvalidError(f"backoff: a jitter of {value.jitter}; 0 to 1 are allowed")
    return value


def backoff_text(backoff: Backoff) -> str:
    return " ".join(repr(float(part)) for part in msgspec.structs.astuple(backoff))


def parse_backoff(text: str) -> Backoff:
    """What `backoff_text` wrote."""
    try:
        base, factor, cap, jitter = map(float, text.split(" "))
        return check_backoff(Backoff(base, factor, cap, jitter))
    except (ValueError, InvalidError) as error:
        raise CorruptError(f"queue config: backoff {text!r}: {error}") from None
