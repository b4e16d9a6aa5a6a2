"""A Spark session that is quiet, local to this machine, and finds its Java by itself.

Contract     session(): a SparkSession; see there. register(): makes the data source known to one.
             The environment of this process is as before when they return.
Invariants   A local session listens on loopback only; a normal run prints nothing; driver and
             Python workers run the same interpreter, so that they find the same packages.
Not here     the data source (source.py); how the package gets to a cluster's nodes: docs/spark.md
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.errors import InvalidError, UnavailableError
from penstock.spark.java import find_java, java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOOPBACK = "127.0.0.1"
_LOG4J2 = Path(__file__).with_name("log4j2.properties")

_DAEMON = "penstock_daemon"
_WORKER_PATH = Path(__file__).with_name("workerpath")

#: One at a time: the environment belongs to the whole process.
_starting = threading.Lock()
#: The JVM of this process was started here, with our variables. It outlives its sessions.
_jvm_is_ours = False


def session(
    app_name: str = "penstock",
    master: str = "local[*]",
    config: Mapping[str, str] | None = None,
    cores: int | None = None,
) -> SparkSession:
    """The Spark session of this process; started if there is none yet.

    `master` is `local[*]` (all cores, in this process' own JVM) or a cluster's address
    (`spark://host:7077`). `cores=2` is short for `master="local[2]"`. `config` holds further
    Spark settings and wins over ours.

    If a session is active, it is returned as `SparkSession.builder` does: name, master, cores and
    whatever else is fixed at the start stay as they are, and of `config` the settings that can
    change at run time are applied. Ours are not: that session is somebody else's work.
    """
    options = settings(app_name, master, config or {}, cores=cores)
    try:
        from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
        from pyspark.core.context import SparkContext
        from pyspark.errors import PySparkRuntimeError
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise InvalidError(
            f"Spark is not installed: {error}", hint="pip install '.[spark]' in the clone"
        ) from error
    global _jvm_is_ours
    with _starting:
        if SparkContext._active_spark_context is not None:
            return SparkSession.builder.config(map={**(config or {})}).getOrCreate()
        variables = _variables(options["spark.master"])
        # A JVM may be there without a session: from one that stopped, or from spark-submit.
        if SparkContext._gateway is None and "PYSPARK_GATEWAY_PORT" not in os.environ:
            variables["JAVA_HOME"] = str(java_home(find_java(os.environ)))
            _jvm_is_ours = True
        if not _jvm_is_ours:
            # It has no PYTHONPATH of ours, so the workers' daemon would not be found.
            options = {k: v for k, v in options.items() if v != _DAEMON}
        with _environment(variables):
            try:
                return SparkSession.builder.config(map={**options}).getOrCreate()
            except PySparkRuntimeError as error:
                if error.getCondition() != "JAVA_GATEWAY_EXITED":
                    raise
                raise UnavailableError(
                    "the JVM of the Spark driver ended at its start",
                    hint="what it said is on stderr; often too little memory, or a wrong setting",
                ) from error
            except Py4JJavaError as error:
                # What there is of it would be given to the next caller as the active session.
                if (half := SparkContext._active_spark_context) is not None:
                    with contextlib.suppress(Exception):
                        half.stop()
                reason = str(error).partition("\n: ")[2].partition("\n")[0]
                raise UnavailableError(
                    f"Spark did not start with master {options['spark.master']}: {reason}",
                    hint="does the master answer? is every setting right? see stderr, too",
                ) from error


def register(spark: SparkSession) -> None:
    """Make `spark.read.format("penstock")` and its kin known to this session."""
    source = importlib.import_module("penstock.spark.source")
    # Off by default, and then Spark refuses sources that take filters.
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(source.PenstockSource)


def settings(
    app_name: str, master: str, config: Mapping[str, str], *, cores: int | None = None
) -> dict[str, str]:
    """Everything Spark is told at its start. Pure, but for the number of cores."""
    if cores is not None:
        if master != "local[*]":
            raise InvalidError(
                f"cores={cores} and master={master!r} both say how many",
                hint="on a cluster: config={'spark.cores.max': '…'}",
            )
        if cores < 1:
            raise InvalidError(f"cores={cores} is not a number of cores")
        master = f"local[{cores}]"
    master = config.get("spark.master", master)
    # Spark says the same, from a JVM that ends with a stack trace.
    if not master.startswith(("local", "spark://", "yarn", "k8s://")):
        raise InvalidError(
            f"{master!r} is not a master of Spark's",
            hint="local[*], spark://host:7077, yarn, or k8s://https://host:port",
        )
    ours = {
        "spark.app.name": app_name,
        "spark.master": master,
        # Before the user's own extraJavaOptions, and the last of two -D wins.
        "spark.driver.defaultJavaOptions": f'-Dlog4j2.configurationFile="{_LOG4J2}"',
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        # A fifth less for a tiny job than loopback TCP, and nothing that others could connect to.
        "spark.python.unix.domain.socket.enabled": "true",
    }
    if _on_this_machine(master):
        ours |= {"spark.driver.host": _LOOPBACK, "spark.driver.bindAddress": _LOOPBACK}
    if (threads := _local_threads(master)) is not None:
        ours["spark.python.daemon.module"] = _DAEMON
        # The default of 200 is for clusters: here each would be a task of nearly nothing.
        ours["spark.sql.shuffle.partitions"] = str(threads)
    return ours | dict(config)


def _local_threads(master: str) -> int | None:
    """How many tasks a local master runs at once; None for a cluster."""
    found = re.fullmatch(r"local(?:\[\s*(\d+|\*)\s*(?:,\s*\d+\s*)?\])?", master)
    if found is None:
        return None
    if found[1] == "*":
        return len(os.sched_getaffinity(0))
    return int(found[1] or 1)


def _on_this_machine(master: str) -> bool:
    """Nobody else has to reach this driver: a local master, or a cluster on loopback."""
    if master.startswith("local"):
        return True
    hosts = re.findall(r"([^/,]+):\d+", master.removeprefix("spark://"))
    return master.startswith("spark://") and all(
        host in ("localhost", "[::1]") or host.startswith("127.") for host in hosts
    )


def _variables(master: str) -> dict[str, str]:
    # Without these Spark takes whatever `python3` is on the PATH. On a cluster a path of this
    # machine may mean nothing, so there the user's own choice goes first.
    python = sys.executable
    if _local_threads(master) is None:
        python = os.environ.get("PYSPARK_PYTHON", python)
    path = [*filter(None, [os.environ.get("PYTHONPATH")]), str(_WORKER_PATH)]
    variables = {
        "PYSPARK_PYTHON": python,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(path),
    }
    if _on_this_machine(master):
        variables["SPARK_LOCAL_IP"] = _LOOPBACK
    return variables


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set while the JVM starts, which keeps them for itself and its Python workers."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
