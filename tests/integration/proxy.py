"""A TCP proxy on loopback that can be cut (resets) or stalled (takes bytes, gives none)."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

State = Literal["through", "cut", "stalled"]


class Proxy:
    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._state: State = "through"
        self._moved = threading.Condition()
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._listener.getsockname()
        threading.Thread(target=self._accept, daemon=True).start()

    def set(self, state: State) -> None:
        with self._moved:
            self._state = state
            self._moved.notify_all()
            if state == "cut":
                for connection in self._open:
                    with contextlib.suppress(OSError):
                        connection.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            if self._state == "cut":
                near.close()
                continue
            far = socket.create_connection(self._target)
            with self._moved:
                self._open |= {near, far}
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while chunk := source.recv(1 << 16):
                with self._moved:
                    self._moved.wait_for(lambda: self._state != "stalled")
                sink.sendall(chunk)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        with self._moved:
            self._open.discard(source)
        source.close()

    def close(self) -> None:
        self.set("cut")
        self._listener.close()


@contextmanager
def proxy(target: tuple[str, int]) -> Iterator[Proxy]:
    made = Proxy(target)
    try:
        yield made
    finally:
        made.close()
