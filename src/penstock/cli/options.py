"""Options that several commands share, so that they are spelled and explained once.

Contract     The location is `--location`, else the environment's PENSTOCK_LOCATION, else
             LOCATION_DEFAULT. `--json` prints one JSON document on stdout and nothing else there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

LOCATION_DEFAULT = "./penstock-data"

Location = Annotated[
    str,
    typer.Option(
        "--location",
        envvar="PENSTOCK_LOCATION",
        metavar="LOCATION",
        help="A folder, or s3://bucket/prefix.",
    ),
]

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]

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
