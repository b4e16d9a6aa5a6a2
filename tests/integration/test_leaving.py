"""A broker that a command started lives on for a while: it leaves when somebody wants the folder
for himself, and not while it is used. And `serve` that cannot listen leaves nothing behind."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path

import pytest

import penstock
from integration.resp_serve import Serve
from penstock.broker.lock import PLACE, HeldError, highest_term, lock_path
from penstock.cli.main import main
from penstock.client.host import take_lock
from penstock.clock import SystemClock


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert isinstance(ended.value.code, int)
    return ended.value.code


def use_briefly(folder: Path) -> None:
    """As commands do: a broker of its own, which is still there when they have ended."""
    with penstock.open(folder, broker="outside") as db:
        db.stream("s").write(b"x")
    assert "while it is used" in lock_path(folder, highest_term(folder)).read_text()


def test_check_comes_right_after_another_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    use_briefly(tmp_path)
    assert run("check", "--location", str(tmp_path), "--json") == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["entries"] == 1
    assert "waiting for the broker" in err
    assert list((tmp_path / PLACE).glob("*.leave")) == []


def test_serve_comes_right_after_another_command(tmp_path: Path) -> None:
    use_briefly(tmp_path)
    with (
        Serve(tmp_path) as served,
        penstock.open(f"penstock://127.0.0.1:{served.port}") as db,
    ):
        assert db.stream("s").info().length == 1


def test_a_broker_that_is_used_is_waited_for_in_vain(tmp_path: Path) -> None:
    clock = SystemClock()
    with penstock.open(tmp_path, broker="outside") as db:
        db.stream("s").write(b"x")
        with pytest.raises(HeldError, match="while it is used"):
            asyncio.run(take_lock(tmp_path, clock=clock, deadline=0.6))
        assert db.stream("s").write(b"y") == 1
    asyncio.run(take_lock(tmp_path, clock=clock, deadline=60)).release()


def test_who_serves_until_told_is_not_asked_to_leave(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with penstock.open(tmp_path) as db:
        db.stream("s").write(b"x")
        assert run("check", "--location", str(tmp_path)) == 5
        assert "waiting" not in capsys.readouterr().err


@pytest.mark.parametrize("command", ["serve", "up"])
def test_a_busy_port_makes_no_location(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        resp = f"127.0.0.1:{taken.getsockname()[1]}"
        assert run(command, str(tmp_path / "other"), "--resp", resp) == 5
    assert f"cannot listen on {resp}: Address already in use" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
