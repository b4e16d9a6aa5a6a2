"""The servers that `penstock bench queue` compares ours with: Redis, RabbitMQ, PostgreSQL.

Contract     `start_peers(folder)` gives a Peer for each one that is installed here, and says of the
             others what is missing: nothing is an error. Each is a process of its own on free
             loopback ports, with its files below `folder`, on the same disk as ours, and is stopped
             when the context ends. What they answer is durable: Redis syncs every write, RabbitMQ
             confirms persistent messages of a durable queue, PostgreSQL commits synchronously.
Root         PostgreSQL refuses to run as root; then it runs as `postgres` or `nobody`.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pwd
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from penstock.cli.bench_peers import redis_server
from penstock.cli.bench_queue_lines import Line, PostgresLine, RabbitLine, RedisLine
from penstock.clock import SystemClock, perf_counter
from penstock.errors import UnavailableError

#: RabbitMQ takes some seconds to start, more on a machine that is busy.
START_SECONDS = 90.0
#: Debian's command on the PATH runs as one certain user and from one certain folder only.
_RABBIT_PLACES = ("/usr/lib/rabbitmq/bin/rabbitmq-server",)
_QUEUE = "bench"


class Peer(msgspec.Struct, frozen=True):
    name: str
    connect: Callable[[], Line]


class Peers(msgspec.Struct):
    running: list[Peer] = []
    #: name -> why it is not compared
    missing: dict[str, str] = {}


@contextlib.contextmanager
def start_peers(folder: Path, report: Callable[[str], None]) -> Iterator[Peers]:
    peers = Peers()
    with contextlib.ExitStack() as stack:
        for name, package, find, serve in (
            ("redis", "redis", find_redis, _redis),
            ("rabbitmq", "pika", find_rabbit, _rabbit),
            ("postgresql", "psycopg", find_postgres, _postgres),
        ):
            command = find()
            if command is None:
                peers.missing[name] = "not installed"
            elif importlib.util.find_spec(package) is None:
                peers.missing[name] = f"the Python package {package} is not installed"
            else:
                report(f"starting {name}")
                try:
                    connect = stack.enter_context(serve(folder / name, command))
                    connect().close()
                except (UnavailableError, OSError) as error:
                    peers.missing[name] = f"did not start: {error}"
                else:
                    peers.running.append(Peer(name, connect))
        yield peers


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    return port


# ---- Redis ------------------------------------------------------------------------------------


def find_redis() -> str | None:
    return shutil.which("redis-server")


@contextlib.contextmanager
def _redis(folder: Path, _: str) -> Iterator[Callable[[], Line]]:
    with redis_server(folder) as port:
        yield lambda: RedisLine(port, _QUEUE)


# ---- RabbitMQ ---------------------------------------------------------------------------------


def find_rabbit() -> str | None:
    found = shutil.which("rabbitmq-server")
    if found is None or shutil.which("erl") is None:
        return None
    return next((place for place in _RABBIT_PLACES if os.access(place, os.X_OK)), found)


@contextlib.contextmanager
def _rabbit(folder: Path, command: str) -> Iterator[Callable[[], Line]]:
    folder.mkdir(parents=True)
    port, epmd_port = free_port(), free_port()
    (folder / "plugins").write_text("[].\n")
    environment = {
        **os.environ,
        "HOME": str(folder),  # its cookie lies there
        "RABBITMQ_NODENAME": f"penstock-bench-{port}@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_DIST_PORT": str(free_port()),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        "RABBITMQ_MNESIA_BASE": str(folder / "data"),
        "RABBITMQ_LOG_BASE": str(folder / "log"),
        "RABBITMQ_CONFIG_FILE": str(folder / "none"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
        # A name server of its own: one that is already there is left alone.
        "ERL_EPMD_PORT": str(epmd_port),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
    }
    with (folder / "out").open("wb") as out:
        process = subprocess.Popen(
            [command], env=environment, cwd=folder, stdout=out, stderr=out, start_new_session=True
        )
    try:
        _await(lambda: RabbitLine(port, _QUEUE).close(), process, "rabbitmq-server")
        yield lambda: RabbitLine(port, _QUEUE)
    finally:
        _end_session(process)
        epmd = shutil.which("epmd")
        if epmd is not None:
            subprocess.run(
                [epmd, "-port", str(epmd_port), "-kill"], env=environment, capture_output=True
            )


def _end_session(process: subprocess.Popen[bytes]) -> None:
    """The script and the virtual machine that it started, which is another process."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


# ---- PostgreSQL -------------------------------------------------------------------------------


def find_postgres() -> str | None:
    """The server itself; what makes its folder lies beside it. Debian has it on no PATH."""
    found = shutil.which("postgres")
    places = [Path(found).resolve()] if found else []
    places += sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), reverse=True)
    return next((str(place) for place in places if (place.parent / "initdb").exists()), None)


def _unprivileged() -> dict[str, Any]:
    """As whom to run it, in the words of Popen."""
    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            entry = pwd.getpwnam(name)
            return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
    raise UnavailableError("it does not run as root, and there is no other user")


@contextlib.contextmanager
def _postgres(folder: Path, command: str) -> Iterator[Callable[[], Line]]:
    folder.mkdir(parents=True)
    who = _unprivileged()
    if who:
        os.chown(folder, who["user"], who["group"])
        folder.parent.chmod(0o711)  # it must get there, and need not see what else there is
    password = SystemClock().entropy(16).hex()
    (folder / "password").write_text(password)
    if who:
        os.chown(folder / "password", who["user"], who["group"])
    data, port = folder / "data", free_port()
    made = subprocess.run(
        [
            str(Path(command).parent / "initdb"),
            *("-D", str(data), "-U", "bench", "-E", "UTF8", "--locale", "C"),
            *("--auth", "scram-sha-256", "--pwfile", str(folder / "password")),
        ],
        cwd=folder, capture_output=True, text=True, **who,
    )  # fmt: skip
    if made.returncode:
        raise UnavailableError((made.stderr.strip() or "initdb failed").splitlines()[-1])
    settings = {
        "listen_addresses": "127.0.0.1",
        "port": port,
        "unix_socket_directories": "",
        "fsync": "on",
        "synchronous_commit": "on",
    }
    flags = [part for key, value in settings.items() for part in ("-c", f"{key}={value}")]
    with (folder / "out").open("wb") as out:
        process = subprocess.Popen(
            [command, "-D", str(data), *flags], cwd=folder, stdout=out, stderr=out, **who
        )
    place = f"host=127.0.0.1 port={port} user=bench password={password} dbname=postgres"
    try:
        _await(lambda: PostgresLine(place, _QUEUE).close(), process, "postgres")
        yield lambda: PostgresLine(place, _QUEUE)
    finally:
        process.send_signal(signal.SIGINT)  # its fast shutdown
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _await(look: Callable[[], None], process: subprocess.Popen[bytes], name: str) -> None:
    """Until a client can use it."""
    until = perf_counter() + START_SECONDS
    trouble: Exception | None = None
    while perf_counter() < until and process.poll() is None:
        try:
            return look()
        except Exception as error:  # of three clients, which share no kind of error
            trouble = error
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.2)
    raise UnavailableError(f"{name} cannot be used: {trouble}")
