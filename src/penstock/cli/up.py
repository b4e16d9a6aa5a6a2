"""`penstock up`: serve a location with everything on, and say how to reach it.

Contract     `penstock serve`, for a person: on the folder's own socket and on RESP, until Ctrl-C.
             Settings come from the command line, the environment, penstock.toml, in this order.
Not here     serving itself (serve.py).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from penstock.cli.options import LOCATION_DEFAULT, Json
from penstock.cli.serve import (
    RESP_DEFAULT,
    Address,
    Password,
    PasswordFile,
    Resp,
    ServedLocation,
    start,
)


def up(
    location: ServedLocation = LOCATION_DEFAULT,
    resp: Resp = RESP_DEFAULT,
    password_file: PasswordFile = None,
    password: Password = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Without the hints.")] = False,
    as_json: Json = False,
) -> None:
    """Serve a location with everything on, and show how to use it."""

    def greet(address: Address | None) -> None:
        if not quiet and not as_json:
            Console(stderr=True, highlight=False).print(_panel(location, address))

    start(
        location, resp, password_file=password_file, password=password, as_json=as_json,
        greet=greet,
    )  # fmt: skip


def _panel(location: str, address: Address | None) -> Panel:
    lines = []
    if "://" not in location:
        lines += [("Python", f'penstock.open("{Path(location)}")')]
    if address is not None:
        host, port = address
        lines += [
            ("Redis clients", f"redis-cli -h {host} -p {port}"),
            ("elsewhere", f'penstock.open("penstock://{host}:{port}")'),
        ]
    lines += [("watch it", f"penstock top --location {location}"), ("end it", "Ctrl-C")]
    width = max(len(name) for name, _ in lines)
    text = Text("\n".join(f"{name:<{width}}   {how}" for name, how in lines))
    return Panel(text, title="penstock is up", title_align="left", expand=False)
