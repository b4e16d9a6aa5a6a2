"""What goes wrong with calls of the store, as the seed decides.

Contract     A `Weather` is how bad a whole world is: the seed draws it once. `decide` draws for
             every call. The store's head (store/memory.py) says what each action means.
"""

from __future__ import annotations

from random import Random

import msgspec

from penstock.store.memory import (
    NO_FAULT,
    Action,
    Call,
    Crash,
    Delay,
    Fault,
    Fence,
    Lose,
    Refuse,
    Stall,
)


class Weather(msgspec.Struct):
    """Chances per call; other calls than commits and openings meet trouble `quiet` times less."""

    delay: float
    delay_reads: float  # the same, for other calls than commits and openings
    delay_max: float  # seconds
    refuse: float
    lose: float
    stall: float  # hangs for longer than any deadline
    fence: float
    crash: float
    quiet: float = 20.0

    def calm(self) -> None:
        """Nothing goes wrong any more; calls still take their time."""
        self.refuse = self.lose = self.stall = self.fence = self.crash = 0.0
        self.delay_max = min(self.delay_max, 0.005)


def draw_weather(random: Random, deadline: float) -> Weather:
    def chance(most: float) -> float:
        return random.choice((0.0, 0.0, most / 4, most))

    if random.random() < 0.15:
        return Weather(0.5, random.choice((0.02, 0.5)), 0.01, 0, 0, 0, 0, 0)
    return Weather(
        delay=random.choice((0.0, 0.3, 0.9)),
        delay_reads=random.choice((0.0, 0.02, 0.3)),
        delay_max=random.choice((0.001, 0.02, 0.1, deadline / 4)),
        refuse=chance(0.08),
        lose=chance(0.06),
        stall=chance(0.02),
        fence=chance(0.01),
        crash=chance(0.04),
    )


def draw_fault(random: Random, weather: Weather, call: Call) -> Fault:
    before: list[Action] = []
    after: list[Action] = []
    often = 1.0 if call.operation in ("commit", "open") else 1 / weather.quiet
    for side in (before, after):
        if random.random() < (weather.delay if often == 1.0 else weather.delay_reads):
            side.append(Delay(random.random() ** 3 * weather.delay_max))
        # One draw decides which of the troubles it is, so that each seed has its own mixture.
        luck = random.random() / often
        for chance, action in (
            (weather.refuse, Refuse()),
            (weather.lose, Lose()),
            (weather.stall, Stall()),
            (weather.fence, Fence()),
            (weather.crash, Crash()),
        ):
            if luck < chance / 2:
                if not (isinstance(action, Refuse) and side is after):
                    side.append(action)
                break
            luck -= chance / 2
    return Fault(before, after) if before or after else NO_FAULT
