"""`penstock serve` as a process of its own, ended in order."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

PATIENCE_SECONDS = 60.0


class Serve:
    def __init__(self, location: Path | str, *options: str, env: dict[str, str] | None = None):
        self._process = subprocess.Popen(
            [sys.executable, "-m", "penstock", "serve", str(location), "--json",
             *(options if "--resp" in options else ("--resp", "127.0.0.1:0", *options))],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={**os.environ, **(env or {})},
        )  # fmt: skip
        self.pid = self._process.pid
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], PATIENCE_SECONDS)[0]:
            self._process.kill()
        line = self._process.stdout.readline()
        if not line:
            _, errors = self._process.communicate()
            raise AssertionError(f"serve did not start: {errors.decode()}")
        self.ready = json.loads(line)
        self.port: int = self.ready["port"]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self._process.kill()
            self._process.communicate()
            return
        assert self.stop() == (0, b"", b"")

    def wait(self) -> tuple[int, bytes, bytes]:
        """-> exit code, what else it printed, its errors"""
        try:
            out, errors = self._process.communicate(timeout=PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
            raise
        return self._process.returncode, out, errors

    def stop(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, bytes, bytes]:
        if self._process.poll() is None:
            self._process.send_signal(number)
        return self.wait()
