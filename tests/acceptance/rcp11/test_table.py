"""README.md beside this file tells which test holds which sentence: all of them and no other."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent


def test_the_table_names_every_test_and_no_other() -> None:
    named = re.findall(r"`(test_\w+)` \|$", (HERE / "README.md").read_text(), re.MULTILINE)
    written = [
        name
        for file in HERE.glob("test_*.py")
        if file.name != Path(__file__).name
        for name in re.findall(r"^def (test_\w+)", file.read_text(), re.MULTILINE)
    ]
    assert sorted(named) == sorted(written)
