"""The package: a wheel and an sdist that hold what they should and run where they are installed."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(
        [str(word) for word in command], cwd=cwd, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": "", "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """dist/ with both, built from a copy of what git knows: a build leaves nothing in the clone."""
    folder = tmp_path_factory.mktemp("build")
    run(sys.executable, "-m", "hatchling", "build", "-d", folder, cwd=ROOT)
    return folder


def test_the_wheel_has_the_types_and_nothing_but_the_package(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "penstock/py.typed" in names
    assert "penstock/spark/log4j2.properties" in names
    assert "penstock/spark/workerpath/penstock_daemon.py" in names
    assert {name.split("/")[0].split("-")[0] for name in names} == {
        "penstock",
        "penstock_command.py",
    }
    assert not [name for name in names if "__pycache__" in name]


def test_the_sdist_has_what_a_build_and_its_tests_need(built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {
        "pyproject.toml",
        "LICENSE",
        "README.md",
        "src/penstock/__init__.py",
        "Makefile",
    } <= names
    assert not [name for name in names if name.startswith((".venv", "build/", ".hypothesis"))]


def test_an_installed_wheel_runs_away_from_the_clone(built: Path, tmp_path: Path) -> None:
    (wheel,) = built.glob("*.whl")
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv", cwd=tmp_path)
    python = tmp_path / "venv" / "bin" / "python"
    run(
        sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps",
        "--no-index", wheel, cwd=tmp_path,
    )  # fmt: skip
    # What it depends on comes from here: this is about the package, not about the registry.
    (site,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    script = (
        "import penstock, sys\n"
        "assert penstock.__file__.startswith(sys.prefix), penstock.__file__\n"
        "with penstock.open('data') as db: print(db.stream('s').write(b'x'))\n"
    )
    assert run(python, "-c", script, cwd=tmp_path) == "0\n"
    assert run(tmp_path / "venv" / "bin" / "penstock", "--version", cwd=tmp_path).startswith(
        "penstock "
    )
    assert "stream" in run(python, "-m", "penstock", "--help", cwd=tmp_path)


def test_what_is_heavy_and_not_needed_is_not_imported() -> None:
    """Every command and every reader pays for it, in seconds and in memory."""
    heavy = ("pandas", "pyspark", "deltalake", "typer", "boto3")
    code = f"import sys, penstock; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
