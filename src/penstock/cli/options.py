"""Options that several commands share, so that they are spelled and explained once.

Contract     The location is `--location`, else the environment's PENSTOCK_LOCATION, else what
             penstock.toml says (config.py), else LOCATION_DEFAULT. `--json` prints one JSON
             document on stdout and nothing else there. What destroys something asks first, unless
             `--yes` is given; where nobody can be asked, it is refused.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.config import load_config
from penstock.cli.output import printable
from penstock.errors import InvalidError

LOCATION_DEFAULT = "./penstock-data"


def nobody_said(context: typer.Context, parameter: typer.CallbackParam) -> bool:
    """Neither the command line nor the environment has a word on it."""
    source = context.get_parameter_source(parameter.name or "")
    return source is not None and source.name == "DEFAULT"


def configured_location(context: typer.Context, parameter: typer.CallbackParam, value: str) -> str:
    return load_config().location or value if nobody_said(context, parameter) else value


Location = Annotated[
    str,
    typer.Option(
        "--location",
        envvar="PENSTOCK_LOCATION",
        metavar="LOCATION",
        help="A folder, s3://bucket/prefix, or penstock://host:port.",
        callback=configured_location,
    ),
]

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]

Pattern = Annotated[
    str, typer.Argument(metavar="PATTERN", help="With *, ? and […], as Redis' KEYS.")
]

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]

Folder = Annotated[
    Path | None,
    typer.Option(
        "--folder",
        exists=True,
        file_okay=False,
        writable=True,
        help="Work in a new folder inside this one; it is removed afterwards.",
    ),
]


def typed(words: Sequence[str] | None) -> list[bytes]:
    """Data that was given as arguments: its bytes as they were typed, which need not be text."""
    return [each.encode("utf-8", "surrogateescape") for each in words or ()]


def confirm(question: str, yes: bool) -> None:
    """Go on, or end, with 1 on a no and with 130 on Ctrl-C: nothing is destroyed unasked."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise InvalidError(f"{question} Nobody can be asked here", hint="repeat it with --yes")
    try:
        agreed = typer.confirm(printable(question), err=True)
    except typer.Abort:  # Ctrl-C, or the end of the input
        raise KeyboardInterrupt from None
    if not agreed:
        raise typer.Exit(1)
