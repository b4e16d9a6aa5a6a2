"""`penstock doctor`: is this machine ready, and what is it short of?

Contract     Looks and changes nothing but a file of its own in the location's folder, which it
             removes. Every finding is `good`, `note` (something works less well, or not at all, and
             nothing asked for it) or `bad`; exit 1 if one is bad. What is missing is named with
             what to do about it.
"""

from __future__ import annotations

import os
import platform
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import typer
from rich.table import Table
from rich.text import Text

from penstock.cli.figures import file_system, percentile
from penstock.cli.options import LOCATION_DEFAULT, Json, Location
from penstock.cli.output import print_json, result_console
from penstock.cli.serve import RESP_DEFAULT, parse_address
from penstock.clock import perf_counter
from penstock.errors import InvalidError, PenstockError
from penstock.store.disk import make_synchronous
from penstock.store.location import folder_of

Grade = Literal["good", "note", "bad"]
PYTHON_MIN = (3, 11)
#: Durable appends that are tried, of so many bytes.
SYNCS = 50
SYNC_BYTES = 100
#: A disk that takes longer than this for one makes everything slow.
SYNC_SLOW_MS = 20.0
FREE_LOW = 1 << 30
STYLES: dict[Grade, str] = {"good": "green", "note": "yellow", "bad": "bold red"}


class Finding(msgspec.Struct, frozen=True):
    what: str
    grade: Grade
    found: str
    hint: str = ""


def doctor(
    resp: Annotated[
        str, typer.Option("--resp", metavar="HOST:PORT", help="Where you want to listen.")
    ] = RESP_DEFAULT,
    location: Location = LOCATION_DEFAULT,
    as_json: Json = False,
) -> None:
    """Look whether this machine has what Penstock needs: Python, Java, Spark, a disk, a port."""
    findings = list(examine(location, resp))
    if as_json:
        print_json(findings)
    else:
        _print(findings)
    if any(finding.grade == "bad" for finding in findings):
        raise typer.Exit(1)


def examine(location: str, resp: str) -> Iterator[Finding]:
    checks: tuple[tuple[str, Callable[[], Finding]], ...] = (
        ("Python", _python),
        ("SlateDB", lambda: _package("slatedb", "SlateDB", "pip install . in the clone")),
        ("Spark", lambda: _package("pyspark", "Spark", "pip install '.[spark]' in the clone")),
        ("Delta", lambda: _package("deltalake", "Delta", "pip install '.[spark]' in the clone")),
        ("Java", _java),
        ("disk", lambda: _disk(location)),
        ("space", lambda: _space(location)),
        ("port", lambda: _port(resp)),
    )
    for what, check in checks:
        try:
            yield check()
        except (PenstockError, OSError) as error:
            yield Finding(what, "bad", str(error), getattr(error, "hint", ""))


def _python() -> Finding:
    found = f"{platform.python_version()}, {sys.executable}"
    if sys.version_info < PYTHON_MIN:
        return Finding("Python", "bad", found, "Python 3.11 or newer is needed")
    return Finding("Python", "good", f"{found}, penstock {metadata.version('penstock')}")


def _package(name: str, what: str, install: str) -> Finding:
    """Of what the extras bring, only what is used needs to be there."""
    try:
        return Finding(what, "good", f"{name} {metadata.version(name)}")
    except metadata.PackageNotFoundError:
        grade: Grade = "bad" if name == "slatedb" else "note"
        return Finding(what, grade, f"{name} is not installed", install)


def _java() -> Finding:
    try:
        from penstock.spark.java import VERSION_MIN, find_java, passed_over
    except ImportError:
        return Finding("Java", "note", "not looked for: Spark is not installed")
    java = find_java(os.environ)
    found = f"version {java.version}, {java.path}"
    if fault := passed_over(os.environ):
        return Finding(
            "Java",
            "note",
            f"{found}; JAVA_HOME is passed over: {fault}",
            f"let it name a JDK of version {VERSION_MIN} or newer, or unset it",
        )
    return Finding("Java", "good", found)


def _folder(location: str) -> Path | None:
    """The nearest folder that is there; None for what is no folder."""
    if location.startswith("penstock://"):
        return None
    folder = folder_of(location)
    while folder is not None and not folder.exists():
        folder = folder.parent
    if folder is not None and not folder.is_dir():
        raise InvalidError(f"{folder} is a file", hint="name a folder with --location")
    return folder


def _disk(location: str) -> Finding:
    folder = _folder(location)
    if folder is None:
        return Finding("disk", "note", f"{location} is not a folder")
    try:
        with tempfile.TemporaryDirectory(prefix=".penstock-doctor-", dir=folder) as scratch:
            passed_on = make_synchronous(Path(scratch))
            times = _syncs(Path(scratch) / "try")
    except OSError as error:
        found = f"{folder}: nothing can be written here: {error.strerror}"
        return Finding("disk", "bad", found, "check its permissions, or name another --location")
    p50 = percentile(times, 50) * 1000
    kind = file_system(folder)
    found = f"{kind}, a durable append takes {p50:.2f} ms (p99 {percentile(times, 99) * 1000:.2f})"
    if p50 > SYNC_SLOW_MS:
        return Finding("disk", "note", found, "use a disk with a faster sync, or larger batches")
    if not passed_on:
        return Finding("disk", "good", f"{found}; synced as a whole, every 10 s")
    return Finding("disk", "good", found)


def _syncs(path: Path) -> list[float]:
    times = []
    with path.open("wb", buffering=0) as file:
        for _ in range(SYNCS):
            begun = perf_counter()
            file.write(bytes(SYNC_BYTES))
            os.fdatasync(file.fileno())
            times.append(perf_counter() - begun)
    return times


def _space(location: str) -> Finding:
    folder = _folder(location)
    if folder is None:
        return Finding("space", "note", f"{location} is not a folder")
    found = os.statvfs(folder)
    free = found.f_bavail * found.f_frsize
    text = f"{free / (1 << 30):,.1f} GiB free at {folder}"
    if free < FREE_LOW:
        return Finding("space", "note", text, "writing stops when the disk is full")
    return Finding("space", "good", text)


def _port(resp: str) -> Finding:
    address = parse_address(resp)
    if address is None:
        return Finding("port", "note", "none is wanted")
    with socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except socket.gaierror as error:
            return Finding("port", "note", f"{resp}: {error.strerror}", "choose another --resp")
        except OSError as error:
            return Finding(
                "port", "note", f"{resp}: {error.strerror}", "somebody listens there; see --resp"
            )
    return Finding("port", "good", f"{resp} is free")


def _print(findings: list[Finding]) -> None:
    table = Table()
    for name in ("", "what", "found", "what to do"):
        table.add_column(name, overflow="fold")
    for finding in findings:
        table.add_row(
            Text(finding.grade, style=STYLES[finding.grade]),
            Text(finding.what),
            Text(finding.found),
            Text(finding.hint),
        )
    result_console().print(table)
