"""Help that helps: every command shows an example of itself that it would take."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from penstock.cli.main import app


def every_command() -> Iterator[tuple[str, Any]]:
    """Those that do something, among them groups that are commands themselves."""

    def walk(command: Any, path: str) -> Iterator[tuple[str, Any]]:
        children = getattr(command, "commands", {})
        if not children or command.invoke_without_command:
            yield path, command
        for name, child in children.items():
            yield from walk(child, f"{path} {name}".strip())

    yield from walk(typer.main.get_command(app), "")


COMMANDS = dict(every_command())


@pytest.mark.parametrize("path", COMMANDS)
def test_every_command_shows_an_example_that_it_takes(path: str) -> None:
    command = COMMANDS[path]
    begin, colon, example = (command.epilog or "").partition(": ")
    assert (begin, colon) == ("Example", ": "), "an example is missing"
    words = shlex.split(example)
    words = words[words.index("penstock") + 1 :]
    words = words[: words.index(">")] if ">" in words else words
    for name in path.split():
        assert words.pop(0) == name
    # An unknown option, a value of the wrong kind and one word too many end here.
    taken = command.make_context(path, list(words), resilient_parsing=True)
    asked = [p for p in command.params if p.required and p.param_type_name == "argument"]
    assert all(taken.params[p.name] not in (None, (), []) for p in asked), "an argument is missing"


@pytest.mark.parametrize("path", COMMANDS)
def test_every_command_has_json(path: str) -> None:
    assert any("--json" in parameter.opts for parameter in COMMANDS[path].params)
