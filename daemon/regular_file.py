"""What the checker reads must be a file on a disk: a pipe or a device would let it wait for ever, or read without end.

Called before a configuration, a policy or a plan is opened.
"""

from __future__ import annotations

import os
import stat

CONFIGURATION_BYTES_MAX = 4 << 20


class NotRegular(Exception):
    """The path names something else than a readable file of a sensible size. The text does not name the path."""


def check_regular(path: str, bytes_max: int | None = None) -> None:
    """Raises NotRegular. Why a file cannot be opened at all is for the one to say who opens it for reading."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except ValueError:
        raise NotRegular("a path cannot hold a zero byte") from None
    except OSError:
        return
    try:
        held = os.fstat(fd)
    finally:
        os.close(fd)
    if not stat.S_ISREG(held.st_mode) and not stat.S_ISDIR(held.st_mode):  # a folder is refused by who reads it
        raise NotRegular("is no regular file: a pipe or a device cannot be checked")
    if bytes_max is not None and held.st_size > bytes_max:
        raise NotRegular(f"has {held.st_size} bytes, at most {bytes_max} are read")
