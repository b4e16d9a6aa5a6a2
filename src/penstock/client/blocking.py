"""Synchronous handles: each call is its namesake of the asynchronous one, run on the handle's own
loop and waited for. There is no second definition, and the types are those of the first."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

from penstock.client.handles import AsyncHandle, Handle
from penstock.client.thread import LoopThread, Work

A = TypeVar("A", bound=AsyncHandle)
B = TypeVar("B", bound="Blocking[Any]")
P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")


class Blocking(Handle, Generic[A]):
    """A handle whose calls wait for those of the asynchronous one inside it."""

    def __init__(self, inner: A, thread: LoopThread) -> None:
        self._inner = inner
        self._thread = thread

    def close(self) -> None:
        """Give up this handle; what it stands for stays, and the location stays open."""
        self._inner._closed = True  # type: ignore[attr-defined]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return repr(self._inner).replace("penstock.Async", "penstock.", 1)


def blocking(
    method: Callable[Concatenate[A, P], Work[R]],
) -> Callable[Concatenate[Blocking[A], P], R]:
    """The method with the same arguments that returns when it is done."""

    @wraps(method)
    def call(self: Blocking[A], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._thread.call(method(self._inner, *args, **kwargs))

    return call


def blocking_as(
    method: Callable[Concatenate[A, P], Work[R]],
    shape: Callable[[Any, R], S],
    like: Callable[..., object] | None = None,
) -> Callable[Concatenate[Blocking[A], P], S]:
    """The same, for answers that are handles themselves: `shape(self, answer)` makes them block.
    `like` has the name and the words, if they are not the method's own."""

    @wraps(like or method)
    def call(self: Blocking[A], /, *args: P.args, **kwargs: P.kwargs) -> S:
        return shape(self, self._thread.call(method(self._inner, *args, **kwargs)))

    return call
