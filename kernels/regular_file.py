"""Reads a file that a person named or that lies in a named folder: only a regular one, only up to a size.

Callers: the importer, the spec's reader, the calibration pictures. A pipe would let them wait for ever, and a device be
read without end.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path


class FileRefused(ValueError):
    """The text says why, without the path."""


def read_regular(path: Path, most: int) -> bytes:
    """The whole file, at most `most` bytes. Raises FileRefused."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except ValueError:
        raise FileRefused("cannot be read: a path cannot hold a zero byte") from None
    except OSError as error:
        raise FileRefused(f"cannot be read: {error.strerror}") from error
    if stat.S_ISDIR(os.fstat(fd).st_mode):             # Python's open() refuses it without naming a path
        os.close(fd)
        raise FileRefused("cannot be read: it is a folder")
    with open(fd, "rb") as file:
        held = os.fstat(fd)
        if not stat.S_ISREG(held.st_mode):
            raise FileRefused("cannot be read: it is a pipe, a socket or a device, not a file")
        if held.st_size > most:
            raise FileRefused(f"has {held.st_size} bytes, which is larger than {most}")
        try:
            return file.read(held.st_size)
        except OSError as error:
            raise FileRefused(f"cannot be read: {error.strerror}") from error
