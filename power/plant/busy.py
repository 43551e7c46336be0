"""The busy counter in a small file: two whole numbers, "now_ns busy_ns", both of CLOCK_MONOTONIC and never falling.

Written by whoever runs engines (or a load generator), read by the plant's runner and by the steward where no stats
page is used. Invariant: a torn, missing or foreign file reads as None, never as idle.
"""

from __future__ import annotations

import os
from pathlib import Path

_FORM = "{:020d} {:020d}\n"


def _parse(data: bytes) -> tuple[int, int] | None:
    words = data.split()
    if len(words) != 2 or not data.endswith(b"\n") or not all(word.isdigit() for word in words):
        return None
    return int(words[0]), int(words[1])


def read_busy_fd(fd: int) -> tuple[int, int] | None:
    """(now_ns, busy_ns) from an open file or memfd, or None."""
    try:
        return _parse(os.pread(fd, 64, 0))
    except OSError:
        return None


def read_busy_file(path: Path) -> tuple[int, int] | None:
    """(now_ns, busy_ns) from a file, or None while it is absent or no counter."""
    try:
        return _parse(path.read_bytes()[:64])
    except OSError:
        return None


def write_busy_fd(fd: int, now_ns: int, busy_ns: int) -> None:
    """Put the counter into an open file or memfd; one write of fixed length, so a reader sees old or new."""
    os.pwrite(fd, _FORM.format(now_ns, busy_ns).encode(), 0)


def write_busy_file(path: Path, now_ns: int, busy_ns: int) -> None:
    """Put the counter into a file, atomically."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(_FORM.format(now_ns, busy_ns))
    temporary.replace(path)
