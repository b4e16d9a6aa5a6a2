"""What a forked child must let go of: its parent's sockets, and the right to serve.

Contract     In a child, right after the fork, every socket that this process listened on, accepted
             or connected for Penstock is replaced by /dev/null. A broker and its clients know of
             each other's end by their sockets, and a child that kept a copy would hide that end.
             Replaced, not closed: objects of the parent still name these numbers, and a number that
             is free could become another file of the child before such an object is collected.
             SlateDB hangs in a process that was forked after its parent opened a store, so such a
             child may not serve: `may_open_stores` says so.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat

_addresses: set[str | tuple[str, int]] = set()
_state = {"opened": False, "inherited": False}


def add_address(address: str | tuple[str, int]) -> None:
    """A socket is bound to this address, or connected to it."""
    _addresses.add(address)


def store_opened() -> None:
    _state["opened"] = True


def may_open_stores() -> bool:
    return not _state["inherited"]


def _let_go() -> None:
    _state["inherited"] = _state["inherited"] or _state["opened"]
    if not _addresses:
        return
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                descriptor = int(name)
                if stat.S_ISSOCK(os.fstat(descriptor).st_mode) and _is_ours(descriptor):
                    os.dup2(null, descriptor, inheritable=False)
    finally:
        os.close(null)
        _addresses.clear()


def _is_ours(descriptor: int) -> bool:
    """One of its two ends has an address of ours; accepted sockets have that of their listener."""
    sock = socket.socket(fileno=descriptor)
    try:
        for ask in (sock.getsockname, sock.getpeername):
            with contextlib.suppress(OSError):
                end = ask()
                if (end if isinstance(end, str) else tuple(end[:2])) in _addresses:
                    return True
        return False
    finally:
        sock.detach()


os.register_at_fork(after_in_child=_let_go)
