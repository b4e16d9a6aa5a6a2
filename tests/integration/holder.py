"""A child that opens locations on command, and so serves them.

It reads `open PATH` and `close PATH`, and answers each with `done`, or the error's kind and text.
"""

from __future__ import annotations

import sys

import penstock
from integration.children import say

held: dict[str, penstock.Database] = {}
for line in sys.stdin:
    word, _, path = line.rstrip("\n").partition(" ")
    try:
        if word == "open":
            held[path] = penstock.open(path)
        else:
            held.pop(path).close()
        say("done")
    except penstock.PenstockError as error:
        say(f"{type(error).__name__} {error}")
