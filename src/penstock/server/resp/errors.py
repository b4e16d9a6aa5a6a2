"""Errors on the wire: one table, six kinds and Redis' own words for the rest.

Contract     `-KIND text [hint]`. Never LOADING or TRYAGAIN: redis-py silently sends a write again
             on those.
"""

from __future__ import annotations

from penstock.codec.resp import error
from penstock.errors import (
    ConflictError,
    CorruptError,
    FencedError,
    InvalidError,
    NotFoundError,
    PenstockError,
    UnavailableError,
)

KINDS: dict[type[PenstockError], str] = {
    InvalidError: "INVALID",
    NotFoundError: "NOTFOUND",
    ConflictError: "CONFLICT",
    UnavailableError: "UNAVAILABLE",
    FencedError: "FENCED",
    CorruptError: "CORRUPT",
}

INTERNAL = error("ERR", "internal error")


def encode_error(failure: PenstockError) -> bytes:
    kind = next((name for kind, name in KINDS.items() if isinstance(failure, kind)), "ERR")
    text = str(failure) or type(failure).__name__
    return error(kind, f"{text} [{failure.hint}]" if failure.hint else text)


def unknown_command(words: list[bytes]) -> bytes:
    """As Redis says it: clients recognise the sentence."""
    shown = ""
    for word in words[1:]:
        if len(shown) >= 128:
            break
        shown += f"'{_text(word[:128])[: 128 - len(shown)]}' "
    return error(
        "ERR", f"unknown command '{_text(words[0][:128])}', with args beginning with: {shown}"
    )


def unknown_subcommand(command: str, word: bytes) -> bytes:
    return error("ERR", f"unknown subcommand '{_text(word[:128])}'. Try {command} HELP.")


def _text(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")
