"""A child that opens folders at the same instant as others.

After `go PATH` it opens that one, writes an entry and says `serves yes|no OFFSET`; after `end` it
closes it and says `closed`.
"""

from __future__ import annotations

import sys

import penstock
from integration.children import say

for line in sys.stdin:
    with penstock.open(line.removeprefix("go ").rstrip("\n")) as db:
        offset = db.stream("s").write(b"x")
        say(f"serves {'no' if db._session.link.broker is None else 'yes'} {offset}")
        sys.stdin.readline()
    say("closed")
