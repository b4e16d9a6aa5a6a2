"""What all handles share: they are closed once, and are never copied to another process."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from penstock.client.thread import Work
from penstock.errors import InvalidError

R = TypeVar("R")


class Runner(Protocol):
    """How a coroutine of the loop's thread becomes one of the caller."""

    def __call__(self, work: Work[R], /) -> Work[R]: ...


class Handle:
    def __reduce__(self) -> Any:
        raise InvalidError(
            "an open location cannot be pickled", hint="pickle its path, and open that"
        )


class AsyncHandle(Handle, ABC):
    @abstractmethod
    def close(self) -> Work[None]: ...

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()
