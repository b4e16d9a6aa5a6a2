"""`penstock up`: serve a location with everything on, and say how to reach it.

Contract     `penstock serve`, for a person: on the folder's own socket and on RESP, until Ctrl-C.
             Settings come from the command line, the environment, penstock.toml, in this order.
Not here     serving itself (serve.py).
"""

from __future__ import annotations

import shlex
from typing import Annotated

import typer
from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from penstock.cli.options import LOCATION_DEFAULT, Json
from penstock.cli.output import printable
from penstock.cli.serve import (
    RESP_DEFAULT,
    Address,
    Password,
    PasswordFile,
    Resp,
    ServedLocation,
    shown,
    start,
)
from penstock.store.location import folder_of


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
            needs_password = password is not None or password_file is not None
            panel = how_to_reach(location, address, needs_password=needs_password)
            Console(stderr=True, highlight=False).print(panel)

    start(
        location, resp, password_file=password_file, password=password, as_json=as_json,
        greet=greet,
    )  # fmt: skip


def how_to_reach(location: str, address: Address | None, *, needs_password: bool) -> Panel:
    """To be copied, so each line must hold as it stands."""
    lines = []
    # What is no folder is reached by the address alone: opening a bucket would stop this broker.
    there = "" if folder_of(location) is None else location
    if there:
        lines += [("Python", f"penstock.open({there!r})")]
    if address is not None:
        host, port = address
        asks = " --askpass" if needs_password else ""
        lines += [
            ("Redis clients", f"redis-cli -h {host} -p {port}{asks}"),
            ("elsewhere", f"penstock.open('penstock://{shown(address)}')"),
        ]
        there = there or f"penstock://{shown(address)}"
        if needs_password:
            lines += [("password", "PENSTOCK_PASSWORD, for whoever opens penstock://")]
    if there:
        lines += [("watch it", f"penstock top --location {shlex.quote(there)}")]
    lines += [("end it", "Ctrl-C")]
    width = max(len(name) for name, _ in lines)
    text = Text("\n".join(f"{name:<{width}}   {printable(how)}" for name, how in lines))
    return Panel(text, title="penstock is up", title_align="left", expand=False)
