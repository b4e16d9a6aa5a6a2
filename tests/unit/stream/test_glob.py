"""Patterns of names, as Redis' KEYS."""

from __future__ import annotations

import pytest

from penstock.stream.glob import compile_glob


@pytest.mark.parametrize(
    ("pattern", "matches", "others"),
    [
        ("*", ["", "a", "a\nb", "ünï"], []),
        ("click*", ["click", "clicks"], ["Click", "aclick"]),
        ("h?llo", ["hello", "h.llo"], ["hllo", "heello"]),
        ("h[ae]llo", ["hello", "hallo"], ["hillo", "h[ae]llo"]),
        ("h[^e]llo", ["hallo"], ["hello"]),
        ("h[a-c]llo", ["hallo", "hcllo"], ["hdllo"]),
        ("h[c-a]llo", ["hbllo"], ["hdllo"]),
        (r"h\*llo", ["h*llo"], ["hxllo"]),
        (r"[\]]", ["]"], ["\\"]),
        ("[]", [], ["", "[]", "]"]),
        ("[^]", ["a"], [""]),
        ("[abc", ["a"], ["[abc", "d"]),
        ("a.c+", ["a.c+"], ["abc", "a.cc"]),
        ("***a***", ["a", "bab"], ["b"]),
        ("\\", ["\\"], ["a"]),
        ("[a-]", ["a", "-"], ["b"]),
    ],
)
def test_a_pattern_matches_as_in_redis(pattern: str, matches: list[str], others: list[str]) -> None:
    found = compile_glob(pattern)
    assert [name for name in matches if not found(name)] == []
    assert [name for name in others if found(name)] == []


def test_many_stars_do_not_explode() -> None:
    assert not compile_glob("*a" * 12 + "b")("a" * 60)
