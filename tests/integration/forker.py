"""A child that opens a folder and forks.

    python -m integration.forker LOCATION [serve]

It says `open` and the number of its own child. That one only lives; or, with `serve`, opens the
folder itself after its parent has closed it, writes, says what came of it, and both end.
"""

from __future__ import annotations

import os
import sys
import warnings

import penstock
from integration.children import say

warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads
db = penstock.open(sys.argv[1])
db.stream("s").write(b"parent")
say("open")
reader, writer = os.pipe()
pid = os.fork()
if pid:
    say(str(pid))
    if sys.argv[2:] == ["serve"]:
        db.close()
        os.write(writer, b"x")
        assert os.waitpid(pid, 0)[1] == 0
    else:
        sys.stdin.readline()
else:
    os.close(writer)
    os.read(reader, 1)
    try:
        with penstock.open(sys.argv[1]) as own:
            say(f"child serves {'no' if own._session.link.broker is None else 'yes'}")
            say(f"child wrote {own.stream('s').write(b'child')}")
    except BaseException as error:
        say(f"child {error!r}")
    os._exit(0)
