"""Commands that end at once and a bucket: they look through its broker, and never stop it."""

from __future__ import annotations

import os
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

import penstock
from conformance.factories import BUCKET
from integration.resp_serve import Serve
from penstock.cli.main import main


class Done(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """A command as a user types it, in this process."""

    def run(*words: str) -> Done:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert isinstance(ended.value.code, int)
        return Done(ended.value.code, *capsys.readouterr())

    return run


def objects_under(location: str) -> list[str]:
    prefix = location.removeprefix(f"s3://{BUCKET}/")
    url = f"{os.environ['AWS_ENDPOINT']}/{BUCKET}?list-type=2&prefix={prefix}/"
    with urllib.request.urlopen(url) as answer:
        return [part.split("</Key>")[0] for part in answer.read().decode().split("<Key>")[1:]]


def test_a_command_leaves_the_broker_of_a_bucket_alone(
    bucket: str, command: Callable[..., Done]
) -> None:
    with Serve(bucket) as served:
        address = f"penstock://127.0.0.1:{served.port}"
        with penstock.open(address) as db:
            db.create_queue("jobs")
            for words in (
                ("queue", "ls"), ("stream", "write", "s", "x"), ("queue", "publish", "x"),
                ("topic", "ls"), ("top", "-n", "1"),
            ):  # fmt: skip
                done = command(*words, "--location", bucket)
                assert done.code == 2, done
                assert "penstock serve" in done.err
                assert "penstock://" in done.err
            db.publish(b"still there")  # by the same broker
        done = command("queue", "ls", "--location", address)
        assert (done.code, "jobs" in done.out) == (0, True), done


def test_who_takes_a_bucket_over_says_so(bucket: str, command: Callable[..., Done]) -> None:
    with penstock.open(bucket) as db:
        db.create_queue("jobs")
    done = command("--take-over", "queue", "ls", "--location", bucket)
    assert (done.code, "jobs" in done.out) == (0, True), done


def test_a_bucket_that_is_only_looked_at_gets_no_location(
    bucket: str, command: Callable[..., Done]
) -> None:
    for words in (("stream", "ls"), ("queue", "ls"), ("queue", "claim", "q")):
        done = command("--take-over", *words, "--location", bucket)
        assert done.code == 3, done
        assert "no Penstock location" in done.err
    assert objects_under(bucket) == []
    done = command("--take-over", "stream", "write", "s", "x", "--location", bucket)
    assert done.code == 0, done
    assert objects_under(bucket) != []


def test_a_bucket_that_is_not_there_is_told(server: None, command: Callable[..., Done]) -> None:
    for words in (("serve",), ("--take-over", "queue", "ls", "--location")):
        done = command(*words, "s3://nobody-has-it/x")
        assert done.code == 3, done
        assert "there is no such bucket" in done.err


@pytest.mark.parametrize("words", [("serve", "./d"), ("check", "--location", "./d"), ("doctor",)])
def test_what_has_nothing_to_take_over_refuses_the_option(
    words: tuple[str, ...],
    command: Callable[..., Done],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    done = command("--take-over", *words)
    assert done.code == 2, done
    assert "--take-over" in done.err
    assert list(tmp_path.iterdir()) == []
