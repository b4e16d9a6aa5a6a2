"""Six kinds of error, chosen by what the caller must do next.

Contract     One level under PenstockError. `retry` says whether the same call may succeed later
             without being changed; `hint` says what to do, in words. Messages are for people and
             are not API; the class is.
Not here     Expected outcomes (stale, duplicate, empty): those are replies. Bugs: those are
             asserts.
"""

from __future__ import annotations


class PenstockError(Exception):
    """Base of all errors that Penstock raises on purpose."""

    #: The same call, unchanged, may succeed later.
    retry: bool = False
    #: What the caller can do about it.
    hint: str = ""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        if hint is not None:
            self.hint = hint
            # So that a traceback shows it, also one that another program prints, such as Spark.
            self.add_note(f"hint: {hint}")


class InvalidError(PenstockError):
    """The request is wrong; nothing was changed."""

    hint = "fix the request"


class NotFoundError(PenstockError):
    """What the request names does not exist."""

    hint = "create it, or check the name"


class ConflictError(PenstockError):
    """Somebody else changed it first; nothing was changed by this call."""

    retry = True
    hint = "read again and retry now"


class UnavailableError(PenstockError):
    """The store did not answer in time. The outcome may be unknown."""

    retry = True
    hint = "retry later; a write may or may not have happened"


class FencedError(PenstockError):
    """Another writer owns this location now; this handle is finished."""

    hint = "open the location again"


class CorruptError(PenstockError):
    """Stored bytes are not what was written."""

    hint = "stop, keep the files, restore or repair them (penstock check)"
