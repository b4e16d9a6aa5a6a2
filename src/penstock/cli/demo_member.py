"""One of the processes that share a folder in the demo: it writes, and reads in a group.

Contract     `python -m penstock.cli.demo_member LOCATION NUMBER`. It says `ack` with a batch after
             its write returned, and `did` with the offsets of entries that it got and is about to
             acknowledge. A write that ended without an answer is sent again with the same sequence,
             so that it counts once. A line on its standard input ends the writing; it ends itself
             when its group has acknowledged everything. One `os.write` per line, as in
             demo_writer.py.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading

import penstock
from penstock.cli.demo_entries import Acknowledged, Entry, encode_acknowledged, encode_entry
from penstock.errors import PenstockError

STREAM = "shared"
GROUP = "workers"
SIZES = (1, 1, 10, 100)
#: An entry of a killed reader comes again after this long.
RETRY_S = 1.0


def write_until(stream: penstock.Stream, number: int, told: threading.Event) -> None:
    for sequence in itertools.count():
        size = SIZES[sequence % len(SIZES)]
        batch = [encode_entry(Entry(number, sequence, i, size)) for i in range(size)]
        offsets = None
        while offsets is None:
            try:
                offsets = stream.write_many(batch, producer=f"member {number}", sequence=sequence)
            except penstock.UnavailableError:
                continue
        os.write(1, b"ack " + encode_acknowledged(Acknowledged(number, sequence, offsets[0], size)))
        if told.is_set():
            return


def read_until(stream: penstock.Stream, written: threading.Event) -> None:
    while True:
        try:
            found = stream.read_group(GROUP, 100, block=0.2, retry=RETRY_S)
            if found:
                offsets = [message.offset for message in found]
                os.write(1, b"did %s\n" % b" ".join(b"%d" % offset for offset in offsets))
                stream.ack(GROUP, *offsets)
            elif written.is_set() and done(stream):
                return
        except penstock.UnavailableError:
            continue  # what was not acknowledged comes again


def done(stream: penstock.Stream) -> bool:
    info = stream.group(GROUP).info()
    return not info.pending and info.last_offset == stream.info().last


def wait_for_word(told: threading.Event) -> None:
    sys.stdin.readline()
    told.set()


def main(location: str, number: int) -> None:
    told, written = threading.Event(), threading.Event()
    with penstock.open(location) as db:
        stream = db.stream(STREAM)
        reader = threading.Thread(target=read_until, args=(stream, written), daemon=True)
        reader.start()
        threading.Thread(target=wait_for_word, args=(told,), daemon=True).start()
        write_until(stream, number, told)
        written.set()
        reader.join()


if __name__ == "__main__":
    try:
        main(sys.argv[1], int(sys.argv[2]))
    except PenstockError as error:
        sys.exit(f"{type(error).__name__}: {error}")
