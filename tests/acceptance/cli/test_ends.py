"""How commands end: questions, Ctrl-C, a reader that has gone, no output at all."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import penstock

COMMAND = [sys.executable, "-P", "-m", "penstock"]


@pytest.mark.parametrize(("keys", "code"), [(b"n\n", 1), (None, 130)], ids=["n", "Ctrl-C"])
def test_a_question_that_is_not_answered_with_yes_changes_nothing(
    db: penstock.Database, keys: bytes | None, code: int
) -> None:
    db.stream("asked").write(b"x")
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, "stream", "rm", "asked", "--location", db.location],
        stdin=theirs, stdout=theirs, stderr=theirs,
    )  # fmt: skip
    os.close(theirs)
    said = b""
    while b"[y/N]" not in said:
        said += os.read(ours, 1000)
    if keys is None:
        press_ctrl_c(process)
    else:
        os.write(ours, keys)
    assert process.wait(timeout=60) == code
    os.close(ours)
    assert "asked" in db.streams()


def press_ctrl_c(process: subprocess.Popen[bytes]) -> None:
    """Python notices a signal that comes between the question and the reading of the answer only
    with the next one: on a busy machine that moment is long enough to meet it."""
    for _ in range(6):
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=10)
            return


#: Ctrl-C when a module in the middle of the package is imported; then what the script does.
_EARLY = """
import os, signal, sys
from importlib.metadata import entry_points

class Early:
    def find_spec(name, path, target=None):
        if name == "penstock.client.api":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Early)
(command,) = entry_points(group="console_scripts", name="penstock")
command.load()()
"""


@pytest.mark.parametrize("ignored", [False, True])
def test_ctrl_c_while_python_still_imports_shows_no_traceback(ignored: bool) -> None:
    trap = "trap '' INT; " if ignored else ""
    done = subprocess.run(
        ["sh", "-c", f'{trap}exec "$@"', "sh", sys.executable, "-c", _EARLY, "--version"],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.stderr == ""
    if ignored:  # a job in the background goes on
        assert done.returncode == 0
        assert done.stdout.startswith("penstock ")
    else:
        assert done.returncode == -signal.SIGINT  # 130 for a shell
        assert done.stdout == ""


@pytest.mark.parametrize("options", [(), ("--raw",)], ids=["rich", "plain"])
def test_a_reader_that_goes_away_ends_a_command_quietly(
    db: penstock.Database, options: tuple[str, ...]
) -> None:
    db.stream("long").write_many([b"x" * 1000] * 300)
    words = ("stream", "read", "long", "-n", "300", "--location", db.location, *options)
    process = subprocess.Popen([*COMMAND, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(timeout=60) == 128 + signal.SIGPIPE


@pytest.mark.parametrize("closed", [1, 2])
def test_a_command_without_one_of_its_standard_files_works_or_says_so(
    db: penstock.Database, closed: int, tmp_path: Path
) -> None:
    log = tmp_path / "said"
    command = " ".join([*COMMAND, "queue", "ls", "--location", db.location])
    done = subprocess.run(
        ["sh", "-c", f"exec {command} {closed}>&- {3 - closed}>{log}"],
        stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, (done, log.read_text())
