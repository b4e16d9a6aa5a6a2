"""Spark's daemon of Python workers, quiet when a session stops. For local sessions.

Contract     Run by Spark as `python -m penstock_daemon`; does what `pyspark.daemon` does.
Why          At a stop Spark closes the sockets of idle workers before it ends them. On a Unix
             socket a worker may notice first, and prints that its pipe is broken, though there is
             nobody left to tell and nothing was lost.
Not here     Anything of penstock. Workers are forked from this process, and a store's or pyarrow's
             threads would not survive that; so the file lies in a folder of its own, which is put
             on PYTHONPATH.
"""

from __future__ import annotations

import socket

from pyspark import daemon

_worker = daemon.worker


def _quiet_worker(sock: socket.socket, authenticated: bool) -> int:
    try:
        return _worker(sock, authenticated)
    except BrokenPipeError:
        return 1  # the daemon's own word for: end this process


if __name__ == "__main__":
    daemon.worker = _quiet_worker
    daemon.manager()
