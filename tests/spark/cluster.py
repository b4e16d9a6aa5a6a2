"""A standalone Spark cluster of real processes: a master and two workers with one core each.

Contract     Cluster(folder) is up when the constructor returns; `stop` leaves no process. Should
             this process be killed, the kernel kills master and workers, and executors follow
             their worker. With `conf` (Spark's folder of settings) its processes know nothing of
             our buckets and passwords but what is said there. Everything listens on loopback, on
             ports that the kernel chose. Logs and work lie in the folder: master.log,
             worker-0.log, worker-0/app-…/0/stderr, …
             run(name, …) runs `python -m spark.NAME MASTER …` as a driver and returns its output.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyspark

from penstock.spark.java import find_java, java_home
from spark.lean import JVM_OPTIONS, clean_environment, driver_environment, without_secrets

SPARK_HOME = Path(pyspark.__file__).parent

#: Nothing here takes this long, even on a machine that is busy with other things.
PATIENCE_SECONDS = 240.0

_libc = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1


class Cluster:
    def __init__(self, folder: Path, *, conf: Path | None = None) -> None:
        self.folder = folder
        self._environment = clean_environment()
        if conf is not None:
            self._environment = without_secrets(self._environment)
            self._environment["SPARK_CONF_DIR"] = str(conf)
        self._processes: list[subprocess.Popen[bytes]] = []
        try:
            self._start("master", "master.Master")
            self.master = self._wait("master", r"Starting Spark master at (\S+)")
            for worker in ("worker-0", "worker-1"):
                self._start(
                    worker,
                    "worker.Worker",
                    *("--cores", "1", "--memory", "600m"),
                    *("--work-dir", str(folder / worker), self.master),
                )
            for worker in ("worker-0", "worker-1"):
                self._wait(worker, "(Successfully registered) with master")
        except BaseException:
            self.stop()
            raise

    def run(self, name: str, *arguments: str | Path) -> str:
        """What the driver wrote to its standard output; it must end well."""
        driver = subprocess.Popen(
            [sys.executable, "-m", f"spark.{name}", self.master, *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=driver_environment(),
            start_new_session=True,
            preexec_fn=_die_with_parent,
        )
        try:
            output, errors = driver.communicate(timeout=PATIENCE_SECONDS)
        finally:
            _kill_group(driver)
        assert driver.returncode == 0, f"the driver {name} ended with:\n{errors}"
        return output

    def stop(self) -> None:
        for process in reversed(self._processes):
            _kill_group(process)
        self._processes.clear()

    def _start(self, name: str, daemon: str, *arguments: str) -> None:
        place = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        with (self.folder / f"{name}.log").open("wb") as log:
            self._processes.append(
                subprocess.Popen(
                    [
                        SPARK_HOME / "bin" / "spark-class",
                        f"org.apache.spark.deploy.{daemon}",
                        *place,
                        *arguments,
                    ],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=self.folder,
                    env={
                        **self._environment,
                        "SPARK_HOME": str(SPARK_HOME),
                        "JAVA_HOME": str(java_home(find_java(os.environ))),
                        "SPARK_LOCAL_IP": "127.0.0.1",  # for the web pages, which ask nobody else
                        "SPARK_DAEMON_MEMORY": "256m",
                        "SPARK_DAEMON_JAVA_OPTS": JVM_OPTIONS,
                    },
                    start_new_session=True,
                    preexec_fn=_die_with_parent,
                )
            )

    def _wait(self, name: str, pattern: str) -> str:
        """The first group of the pattern, as soon as it stands in the log."""
        until = time.monotonic() + PATIENCE_SECONDS
        while True:
            log = (self.folder / f"{name}.log").read_text(errors="replace")
            if found := re.search(pattern, log):
                return found[1]
            ended = any(process.poll() is not None for process in self._processes)
            assert not ended, f"{name} or one before it ended:\n{log}"
            assert time.monotonic() < until, f"{name} hangs:\n{log}"
            time.sleep(0.05)


def _die_with_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _kill_group(process: subprocess.Popen[bytes] | subprocess.Popen[str]) -> None:
    # The group exists as long as one process of it does: a worker's executors are in it.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()
