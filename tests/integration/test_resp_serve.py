"""`penstock serve`, the process: starts, says so, refuses what is unsafe, ends in order."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from integration.children import Child
from integration.resp_serve import Serve
from integration.resp_server import Wire


def run(*arguments: str | Path) -> tuple[int, str]:
    with Child("command", "serve", *arguments) as child:
        code = child.finish()
        assert child.drain() == []
        return code, child.errors()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_serves_until_it_is_told_and_ends_in_order(
    tmp_path: Path, number: signal.Signals
) -> None:
    served = Serve(tmp_path / "data")
    assert served.ready["host"] == "127.0.0.1"
    assert served.ready["pid"] == served.pid
    with Wire(served.port) as wire, Wire(served.port) as reader:
        assert wire.ask(b"TWRITE", b"s", b"t", b"x") == b":0"
        reader.words(b"TREAD", b"s", b"1", b"1", b"BLOCK", b"0")
        assert served.stop(number) == (0, b"", b"")
        assert wire.rest() == reader.rest() == b""
    with Serve(tmp_path / "data") as again, Wire(again.port) as wire:
        assert wire.ask(b"TWRITE", b"s", b"t", b"x") == b":1"


def test_it_says_in_one_line_where_it_serves(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock", "serve", tmp_path / "data", "--resp", "127.0.0.1:0"],
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    line = process.stdout.readline().decode()
    port = int(line.rpartition("127.0.0.1:")[2].split()[0])
    assert line == f"penstock serves {tmp_path / 'data'} on 127.0.0.1:{port} (RESP)\n"
    with Wire(port) as wire:
        assert wire.ask(b"PING") == b"+PONG"
    process.terminate()
    assert process.communicate(timeout=60)[0] == b""
    assert process.returncode == 0


def test_it_ends_when_nobody_is_connected_for_long_enough(tmp_path: Path) -> None:
    served = Serve(tmp_path / "data", "--idle-exit", "0.3")
    with Wire(served.port) as wire:
        assert wire.ask(b"PING") == b"+PONG"
    assert served.wait() == (0, b"", b"")
    served = Serve(tmp_path / "data", "--idle-exit", "0")
    assert served.wait() == (0, b"", b"")


def test_without_an_address_it_listens_nowhere(tmp_path: Path) -> None:
    with Serve(tmp_path / "data", "--resp", "none") as served:
        assert served.ready["port"] is None


def test_a_password_comes_from_a_file_or_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("secret\n")
    for options, env in (
        (("--password-file", str(file)), {}),
        ((), {"PENSTOCK_PASSWORD": "secret"}),
    ):
        with Serve(tmp_path / "data", *options, env=env) as served, Wire(served.port) as wire:
            assert wire.ask(b"PING") == b"-NOAUTH Authentication required."
            assert wire.ask(b"AUTH", b"nope").startswith(b"-WRONGPASS")
            assert wire.ask(b"AUTH", b"secret") == b"+OK"
            assert wire.ask(b"PING") == b"+PONG"


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "192.0.2.1", "example.com"])
def test_an_address_that_others_reach_needs_a_password(tmp_path: Path, host: str) -> None:
    code, errors = run(tmp_path / "data", "--resp", f"{host}:0")
    assert code == 2
    assert "there is no password" in errors
    assert "PENSTOCK_PASSWORD" in errors
    assert not (tmp_path / "data").exists()


def test_with_a_password_it_may_listen_everywhere(tmp_path: Path) -> None:
    env = {"PENSTOCK_PASSWORD": "secret"}
    with Serve(tmp_path / "data", "--resp", "0.0.0.0:0", env=env) as served:
        assert served.port > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--resp", "7379"), "'7379' is not an address"),
        (("--resp", "127.0.0.1:99999"), "is not an address"),
        (("--resp", "127.0.0.1:x"), "is not an address"),
        (("--idle-exit", "-1"), "--idle-exit is at least 0"),
        (("--password", ""), "the password is empty"),
        (("--password-file", "/nowhere/at/all"), "the password file cannot be read"),
    ],
)
def test_wrong_options_are_one_line(tmp_path: Path, options: tuple[str, ...], message: str) -> None:
    code, errors = run(tmp_path / "data", *options)
    assert code == 2
    assert message in errors
    assert "Traceback" not in errors


def test_a_port_that_is_taken_is_said_and_the_location_is_let_go(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, errors = run(tmp_path / "data", "--resp", f"127.0.0.1:{port}")
    assert code == 5
    assert f"cannot listen on 127.0.0.1:{port}" in errors
    assert "Traceback" not in errors
    with Serve(tmp_path / "data") as served:
        assert served.port
