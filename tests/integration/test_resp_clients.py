"""Stock clients connect without complaint and can do what they came for."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import pty
import re
import select
import shutil
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio
from redis.backoff import NoBackoff
from redis.retry import Retry

from integration.resp_server import RespServer, frame

#: Stock redis-py asks eleven times, with pauses.
ONCE = Retry(NoBackoff(), 0)
#: Whatever is typed before the next prompt is thrown away.
PROMPT = r"[\s\S]*127\.0\.0\.1:\d+> "
NO_CLI = pytest.mark.skipif(shutil.which("redis-cli") is None, reason="redis-cli is not installed")
NO_NPM = pytest.mark.skipif(
    shutil.which("node") is None or shutil.which("npm") is None,
    reason="node and npm are not installed",
)


@pytest.fixture
def served() -> Iterator[RespServer]:
    with RespServer() as server:
        yield server


# ---- redis-py ---------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", [None, 2, 3])
def test_redis_py_connects_writes_and_reads(served: RespServer, protocol: int | None) -> None:
    options = {} if protocol is None else {"protocol": protocol}
    with redis.Redis(port=served.port, **options) as client:  # type: ignore[arg-type]
        assert client.ping()
        assert client.execute_command("TWRITE", "s", "t", "x") == 0
        assert client.execute_command("TWRITE", "s", "ENTRIES", "t", "y", "u", "z") == [1, 2]
        assert client.execute_command("TREAD", "s", 0, 2) == [[0, b"t", b"x"], [1, b"t", b"y"]]
        assert client.execute_command("TEVICT", "s", 0) == 1
        assert client.execute_command("TREAD", "s", 0, 2, "WITHINFO") == [
            [1, 2],
            None,
            [1, b"t", b"y"],
        ]
        offset, tag, data, ms, meta = client.execute_command("TREAD", "s", 1, 1, "FULL")[0]
        assert (offset, tag, data, meta) == (1, b"t", b"y", None)
        assert abs(ms / 1000 - time.time()) < 600
        assert client.execute_command("TWRITE", "s", "META", "ENTRIES", "t", "v", "m") == [3, 3]
        assert client.execute_command("TREAD", "s", 3, 1, "FULL")[0][4] == b"m"
        with pytest.raises(redis.ResponseError, match=r"^INVALID offset is a whole number"):
            client.execute_command("TREAD", "s", "x", 1)
        with pytest.raises(redis.ResponseError, match="unknown command 'SUBSCRIBED'"):
            client.execute_command("SUBSCRIBED")


@pytest.mark.parametrize("protocol", [2, 3])
def test_redis_py_asks_about_the_server(served: RespServer, protocol: int) -> None:
    with redis.Redis(port=served.port, protocol=protocol, client_name="me") as client:
        info = client.info()
        assert info["redis_version"] == "7.4.0"
        assert info["role"] == "master"
        assert info["connected_clients"] == 1
        assert info["epoch"] >= 0
        assert "penstock_version" in info
        assert set(client.info("replication")) >= {"role"}
        assert "role" not in client.info("server")
        assert client.config_get("maxmemory*") == {
            "maxmemory": "0",
            "maxmemory-policy": "noeviction",
        }
        with pytest.raises(redis.ResponseError, match="INVALID"):
            client.config_set("maxmemory", 1)
        assert client.client_getname() in ("me", b"me")
        assert client.client_id() == client.client_info()["id"]
        (mine,) = client.client_list()
        assert (mine["name"], mine["resp"]) == ("me", str(protocol))
        assert mine["lib-name"].startswith("redis-py")
        assert client.command_count() == len(client.command())
        assert client.command()["tread"]["arity"] == -4
        assert client.command_getkeys("TDEL", "a", "b") in (["a", "b"], [b"a", b"b"])
        assert client.echo("x") == b"x"
        assert client.select(0)
        with pytest.raises(redis.ResponseError, match="DB index is out of range"):
            client.select(1)
        seconds, _ = client.time()
        assert abs(seconds - time.time()) < 600


def test_redis_py_pipelines_and_blocks(served: RespServer) -> None:
    with redis.Redis(port=served.port) as client, client.pipeline(transaction=False) as pipeline:
        for n in range(100):
            pipeline.execute_command("TWRITE", "s", "t", str(n))
        pipeline.execute_command("TREAD", "s", 99, 5)
        assert pipeline.execute() == [*range(100), [[99, b"t", b"99"]]]
        assert client.execute_command("TREAD", "s", 100, 5, "BLOCK", 10) == []


@pytest.mark.parametrize("protocol", [2, 3])
def test_redis_py_uses_groups_and_settings(served: RespServer, protocol: int) -> None:
    with redis.Redis(port=served.port, protocol=protocol) as client:

        def ask(line: str) -> Any:
            return client.execute_command(*line.split())

        def ask_map(line: str) -> dict[bytes, Any]:
            found = ask(line)
            return found if protocol == 3 else dict(zip(found[::2], found[1::2], strict=True))

        assert ask("TWRITE s ENTRIES t a t b t c t d") == [0, 3]
        assert ask("TGROUP CREATE s g FROM 1 MAXPENDING 2 DEAD gone") == b"OK"
        assert ask("TREAD s 0 9 GROUP g RETRY 60000 0") == [[1, b"t", b"b"], [2, b"t", b"c"]]
        assert ask("TREAD s 0 9 GROUP g RETRY 60000 0") == []
        ((offset, retry_at, expire_at, deliveries), _) = ask("TGROUP PENDING s g")
        assert (offset, expire_at, deliveries) == (1, 0, 1)
        assert abs(retry_at / 1000 - time.time() - 60) < 600
        assert ask("TACK s g 0-1 3") == 1
        assert ask("TREAD s 0 9 GROUP g RETRY 60000 0 WITHINFO") == [[0, 3], [3, b"t", b"d"]]
        info = ask_map("TGROUP INFO s g")
        assert info[b"name"] == b"g"
        assert (info[b"last_offset"], info[b"pending"], info[b"dead"]) == (3, 2, b"gone")
        assert len(ask("TGROUP INFO s")) == 1
        assert ask("TGROUP SET s g first") == b"OK"
        assert ask("TREAD s 0 1 GROUP g") == [[0, b"t", b"a"]]
        assert ask("TGROUP DESTROY s g") == 1
        assert ask("TGROUP DESTROY s g") == 0
        with pytest.raises(redis.ResponseError, match="NOTFOUND"):
            ask("TGROUP INFO s g")
        assert ask("TCONFIG s MAXLEN 100 COMPACT yes") == b"OK"
        assert ask_map("TCONFIG s") == {
            b"maxlen": 100, b"maxbytes": 0, b"maxage": 0, b"compact": b"yes",
        }  # fmt: skip
        shown = ask_map("TINFO s")
        assert (shown[b"first"], shown[b"last"], shown[b"length"]) == (0, 3, 4)
        assert ask("TLEN s") == 4
        assert ask("TKEYS s*") == [b"s"]
        assert ask("DBSIZE") == 1
        assert client.exists("s", "nothing") == 1
        assert client.type("s") == b"stream"
        assert ask("TDEL s nothing") == 1
        assert client.type("s") == b"none"


@pytest.mark.parametrize("protocol", [2, 3])
async def test_redis_py_asyncio(served: RespServer, protocol: int) -> None:
    # `execute_command` has no types in redis-py.
    client: Any = redis.asyncio.Redis(port=served.port, protocol=protocol)
    reader: Any = redis.asyncio.Redis(port=served.port, protocol=protocol)
    try:
        read = asyncio.ensure_future(reader.execute_command("TREAD", "s", 0, 1, "BLOCK", 0))
        offsets = await asyncio.gather(
            *(client.execute_command("TWRITE", "s", "t", "x") for _ in range(50))
        )
        assert sorted(offsets) == list(range(50))
        assert await read == [[0, b"t", b"x"]]
        # A read that was given up must not leave its answer to the next command.
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await reader.execute_command("TREAD", "s", 50, 1, "BLOCK", 0)
        assert await reader.ping()
    finally:
        await client.aclose()
        await reader.aclose()
    served.until(lambda: served.server.counts.blocked == 0)


@pytest.mark.parametrize("protocol", [2, 3])
def test_a_password_is_asked_for(protocol: int) -> None:
    with RespServer(password="secret") as served:
        with redis.Redis(port=served.port, protocol=protocol, password="secret") as client:
            assert client.ping()
            assert client.execute_command("TWRITE", "s", "t", "x" * 100_000) == 0
        with redis.Redis(
            port=served.port, protocol=protocol, username="default", password="secret"
        ) as client:
            assert client.ping()
        for options in ({}, {"password": "wrong"}, {"username": "me", "password": "secret"}):
            with (
                redis.Redis(port=served.port, protocol=protocol, retry=ONCE, **options) as client,  # type: ignore[arg-type]
                pytest.raises(redis.AuthenticationError),
            ):
                client.ping()
        with served.connect() as wire:
            assert wire.ask(b"PING") == b"-NOAUTH Authentication required."
            assert wire.ask(b"TLEN", b"s") == b"-NOAUTH Authentication required."
            assert wire.ask(b"HELLO", b"3").startswith(b"-NOAUTH HELLO must be called")
            assert wire.ask(b"AUTH", b"secret") == b"+OK"
            assert wire.ask(b"PING") == b"+PONG"
            assert wire.ask(b"RESET") == b"+RESET"
            assert wire.ask(b"PING") == b"-NOAUTH Authentication required."
            wire.send(b"*11\r\n")
            assert wire.line() == b"-ERR Protocol error: unauthenticated multibulk length"


@pytest.mark.parametrize("words", [b"AUTH secret", b"HELLO 2 AUTH default secret"])
def test_a_password_counts_for_what_came_with_it(words: bytes) -> None:
    """As redis-benchmark sends it: more than a stranger may, behind the password, in one piece."""
    write = frame(b"TWRITE", b"s", b"t", b"x" * 20_000)
    many = frame(b"TWRITE", b"s", b"ENTRIES", *[b"", b"x"] * 600)
    with RespServer(password="secret") as served:
        with served.connect() as wire:
            wire.send(frame(b"PING") + frame(*words.split()) + write + many + frame(b"TLEN", b"s"))
            assert wire.line() == b"-NOAUTH Authentication required."
            while not (line := wire.line()).startswith((b":0", b"-")):
                pass
            assert line == b":0"
            assert [wire.line() for _ in range(4)] == [b"*2", b":1", b":600", b":601"]
        with served.connect() as wire:
            wire.send(frame(b"AUTH", b"wrong") + write + frame(b"PING"))
            assert wire.line().startswith(b"-WRONGPASS")
            assert wire.rest() == b"-ERR Protocol error: unauthenticated bulk length\r\n"


def test_auth_without_a_password_is_answered_as_redis_does(served: RespServer) -> None:
    with served.connect() as wire:
        assert wire.ask(b"AUTH", b"x").startswith(b"-ERR AUTH <password> called without any")
        assert wire.ask(b"AUTH", b"default", b"x") == b"+OK"
        assert wire.ask(b"AUTH", b"me", b"x").startswith(b"-WRONGPASS")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("PING", "+PONG"),
        ("PING a b", "-INVALID wrong number of arguments for 'ping' command [PING [message]]"),
        ("ECHO", "-INVALID wrong number of arguments for 'echo' command [ECHO message]"),
        ("HELLO 4", "-NOPROTO unsupported protocol version"),
        ("HELLO x", "-NOPROTO unsupported protocol version"),
        ("HELLO 3 NOPE", "-ERR Syntax error in HELLO option 'NOPE'"),
        ("CLIENT", "-INVALID wrong number of arguments for 'client' command"),
        ("CLIENT NOPE", "-ERR unknown subcommand 'NOPE'. Try CLIENT HELP."),
        ("CLIENT SETNAME", "-INVALID wrong number of arguments for 'client|setname' command"),
        ("CLIENT TRACKING off", "+OK"),
        ("CLIENT TRACKING on", "-INVALID there is no client-side caching here"),
        ("CLIENT NO-EVICT on", "+OK"),
        ("CLIENT NO-TOUCH maybe", "-INVALID syntax error"),
        ("CLIENT KILL 1.2.3.4:5", "-ERR No such client"),
        ("CLIENT UNBLOCK x", "-INVALID client-id is a whole number, not 'x'"),
        ("COMMAND NOPE", "-ERR unknown subcommand 'NOPE'. Try COMMAND HELP."),
        ("COMMAND GETKEYS PING", "-ERR The command has no key arguments"),
        ("COMMAND GETKEYS NOPE", "-ERR Invalid command specified"),
        ("CONFIG NOPE", "-ERR unknown subcommand 'NOPE'. Try CONFIG HELP."),
        ("SELECT 0", "+OK"),
        ("SELECT x", "-INVALID index is a whole number, not 'x'"),
        ("SUBSCRIBE c", "-ERR unknown command 'SUBSCRIBE', with args beginning with: 'c'"),
        ("GET k", "-ERR unknown command 'GET', with args beginning with: 'k'"),
        ("TLEN s", ":0"),
    ],
)
def test_small_answers(served: RespServer, words: str, line: str) -> None:
    with served.connect() as wire:
        assert wire.ask(*words.encode().split()).decode().startswith(line)


def test_client_reply_off_and_skip(served: RespServer) -> None:
    with served.connect() as wire:
        for words in (
            "CLIENT REPLY OFF", "PING", "TWRITE s t x", "TWRITE s t x", "CLIENT REPLY ON",
            "CLIENT REPLY SKIP", "ECHO a", "TLEN s", "CLIENT REPLY SKIP", "TLEN s", "ECHO b",
        ):  # fmt: skip
            wire.words(*words.encode().split())
        wire.words(b"QUIT")
        assert wire.rest() == b"+OK\r\n:2\r\n$1\r\nb\r\n+OK\r\n"


# ---- redis-cli --------------------------------------------------------------------------------


@NO_CLI
@pytest.mark.parametrize("protocol", ["-2", "-3"])
def test_redis_cli_runs_commands(served: RespServer, protocol: str) -> None:
    def run(*words: str, feed: bytes | None = None) -> str:
        done = subprocess.run(
            ["redis-cli", protocol, "-p", str(served.port), *words],
            input=feed, capture_output=True, timeout=60, check=True,
        )  # fmt: skip
        assert done.stderr == b""
        return done.stdout.decode()

    assert run("PING") == "PONG\n"
    assert run("TWRITE", "s", "t", "x") == "0\n"
    assert run("-x", "TWRITE", "s", "t", feed=b"from stdin") == "1\n"
    assert run("--json", "TREAD", "s", "0", "9") == '[[0,"t","x"],[1,"t","from stdin"]]\n'
    assert "# Server" in run("INFO")
    assert run("--no-raw", "CONFIG", "GET", "save").count('"save"') == 1


@NO_CLI
def test_redis_cli_in_a_terminal(served: RespServer) -> None:
    """Interactive: it asks for COMMAND DOCS, completes, and shows the syntax as one types."""
    master, slave = pty.openpty()
    # Without a width it would ask the terminal where its cursor is, and wait for the answer.
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 200, 0, 0))
    process = subprocess.Popen(
        ["redis-cli", "-p", str(served.port)],
        stdin=slave, stdout=slave, stderr=slave, close_fds=True,
        env={**os.environ, "TERM": "xterm", "REDISCLI_HISTFILE": "/dev/null"},
    )  # fmt: skip
    os.close(slave)
    shown = ""

    def until(pattern: str) -> None:
        nonlocal shown
        end = time.monotonic() + 60
        while not re.search(pattern, shown):
            assert time.monotonic() < end, shown
            if select.select([master], [], [], 1)[0]:
                shown += os.read(master, 65536).decode("utf-8", "replace")

    try:
        until(PROMPT)
        os.write(master, b"TWRITE s t hello\r")
        until(r"\(integer\) 0" + PROMPT)
        os.write(master, b"TREAD s 0 1\r")
        until(r'3\) "hello"' + PROMPT)
        os.write(master, b"tread ")
        until(r"key offset count \[BLOCK milliseconds\]")
        os.write(master, b"\x15tre\t")
        until(r"TREAD")
        os.write(master, b"\x15help tlen\r")
        until(r"Counts the entries of a stream" + PROMPT)
        os.write(master, b"exit\r")
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        os.close(master)


# ---- JavaScript -------------------------------------------------------------------------------

IOREDIS = """
const Redis = require('ioredis');
(async () => {
  const c = new Redis({port: +process.argv[2]}), r = c.duplicate();
  const out = [await c.ping(), await c.call('TWRITE', 's', 't', 'x')];
  const p = c.pipeline();
  for (let i = 0; i < 50; i++) p.call('TWRITE', 's', 't', String(i));
  out.push((await p.exec()).map(x => x[1]));
  out.push(await c.call('TREAD', 's', 0, 2));
  const waiting = r.call('TREAD', 's', 51, 1, 'BLOCK', 0);
  await c.call('TWRITE', 's', 't', 'woken');
  out.push(await waiting);
  try { await c.call('NOPE') } catch (e) { out.push(e.message) }
  await c.quit(); await r.quit();
  console.log(JSON.stringify(out));
})();
"""
NODE_REDIS = """
const {createClient} = require('redis');
(async () => {
  const options = {socket: {port: +process.argv[2]}, RESP: +process.argv[3]};
  const c = createClient(options), r = createClient(options);
  for (const each of [c, r]) {
    each.on('error', e => { console.error(e); process.exit(1) });
    await each.connect();
  }
  const out = [await c.ping(), await c.sendCommand(['TWRITE', 's', 't', 'x'])];
  out.push(await Promise.all([...Array(50).keys()].map(
    i => c.sendCommand(['TWRITE', 's', 't', String(i)]))));
  out.push(await c.sendCommand(['TREAD', 's', '0', '2']));
  const waiting = r.sendCommand(['TREAD', 's', '51', '1', 'BLOCK', '0']);
  await c.sendCommand(['TWRITE', 's', 't', 'woken']);
  out.push(await waiting);
  try { await c.sendCommand(['NOPE']) } catch (e) { out.push(e.message) }
  await c.close(); await r.close();
  console.log(JSON.stringify(out));
})();
"""


@pytest.fixture(scope="module")
def node_modules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("node")
    done = subprocess.run(
        ["npm", "install", "--no-audit", "--no-fund", "--silent", "ioredis@5", "redis@5"],
        cwd=folder, capture_output=True, timeout=200, check=False,
    )  # fmt: skip
    if done.returncode:
        pytest.skip(f"npm cannot install ioredis and redis: {done.stderr.decode()[-200:]}")
    return folder


@pytest.mark.slow
@NO_NPM
@pytest.mark.parametrize(
    ("script", "protocol"), [(IOREDIS, 2), (NODE_REDIS, 2), (NODE_REDIS, 3)],
    ids=["ioredis", "node-redis-2", "node-redis-3"],
)  # fmt: skip
def test_javascript_clients(
    served: RespServer, node_modules: Path, script: str, protocol: int
) -> None:
    (node_modules / "script.js").write_text(script)
    done = subprocess.run(
        ["node", "script.js", str(served.port), str(protocol)],
        cwd=node_modules, capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.stderr == b""
    assert json.loads(done.stdout) == [
        "PONG",
        0,
        list(range(1, 51)),
        [[0, "t", "x"], [1, "t", "0"]],
        [[51, "t", "woken"]],
        "ERR unknown command 'NOPE', with args beginning with:",
    ]
