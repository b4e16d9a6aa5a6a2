"""A child that opens a location and says what came of it: `open`, or the error's kind and text."""

from __future__ import annotations

import sys

import penstock
from integration.children import say

try:
    db = penstock.open(sys.argv[1])
except penstock.PenstockError as error:
    say(f"{type(error).__name__} {error}; {error.hint}")
else:
    say("open")
    sys.stdin.readline()
    db.close()
