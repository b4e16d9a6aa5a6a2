"""Something to send to executors that they do not have: only drivers see this folder."""

from __future__ import annotations

from collections.abc import Callable

from penstock.spark.ship import shipped


class Cargo:
    def __init__(self, weight: int) -> None:
        self.weight = weight

    def __reduce__(self) -> tuple[Callable[[bytes], object], tuple[bytes]]:
        return shipped(self)
