"""Numbers about a run: percentiles, memory, bytes on disk, the file system underneath."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least `percent` of all values do not exceed (nearest rank)."""
    assert values
    assert 0 < percent <= 100
    ordered = sorted(values)
    rank = -(-len(ordered) * percent // 100)
    return ordered[int(rank) - 1]


def memory_bytes(pid: int | None = None) -> tuple[int, int]:
    """(resident now, highest so far) of this process, or of another one."""
    status = Path(f"/proc/{'self' if pid is None else pid}/status").read_text()
    fields = dict(line.split(":", 1) for line in status.splitlines())
    return _kib(fields["VmRSS"]), _kib(fields["VmHWM"])


def _kib(field: str) -> int:
    return int(field.split()[0]) * 1024


def disk_bytes(folder: Path) -> int:
    """What the files below `folder` occupy, preallocated space included."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            # The store removes files behind our back while we look.
            try:
                total += os.lstat(os.path.join(parent, name)).st_blocks * 512
            except FileNotFoundError:
                continue
    return total


def file_system(folder: Path) -> str:
    """The type of the file system that holds `folder`: on tmpfs a sync costs nothing."""
    path = str(folder.resolve())
    best, kind = "", "unknown"
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, point, name, *_ = line.split()
        point = point.replace("\\040", " ")
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        # A later mount on the same point hides the earlier one.
        if inside and len(point) >= len(best):
            best, kind = point, name
    return kind
