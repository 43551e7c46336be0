"""The busy counter in a small file: two whole numbers, "now_ns busy_ns", both of CLOCK_MONOTONIC and never falling.

Written by whoever runs engines (or a load generator), read by the plant's runner. Invariant: a torn, missing or foreign
file reads as None, never as idle.
"""

from __future__ import annotations

from pathlib import Path


def read_busy_file(path: Path) -> tuple[int, int] | None:
    """(now_ns, busy_ns) from a file, or None while it is absent or no counter."""
    try:
        data = path.read_bytes()[:64]
    except OSError:
        return None
    words = data.split()
    if len(words) != 2 or not data.endswith(b"\n") or not all(word.isdigit() for word in words):
        return None
    return int(words[0]), int(words[1])


def write_busy_file(path: Path, now_ns: int, busy_ns: int) -> None:
    """Put the counter into a file, atomically."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(f"{now_ns:020d} {busy_ns:020d}\n")
    temporary.replace(path)
