"""Writes a file whole or not at all, in the place of an older one; what a killed writer left behind is swept up.

Callers: `plan/file.py`, the command line's pages and its look at an output before the work. Invariant: nothing but a
regular file is ever replaced, and a symbolic link stays one: its target is written.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedWriter
from pathlib import Path


class NotWritten(OSError):
    """The disk refused; what was there before is still there. `filename` is the path as it was given."""


def place_of(path: Path | str) -> Path:
    """Where a file for `path` lies: behind symbolic links. Raises OSError where something else than a regular file is
    there, or nothing can be."""
    place = Path(os.path.realpath(path))
    try:
        mode = Path(path).stat().st_mode
    except FileNotFoundError:
        if not stat.S_ISDIR(place.parent.stat().st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path)) from None
        return place
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "Is a pipe, a socket or a device", str(path))
    return place


@contextmanager
def replacing(path: Path | str) -> Iterator[BufferedWriter]:
    """A new file that takes the place of `path`, synced, when the block ends without an error. Raises NotWritten."""
    try:
        place = place_of(path)
        _sweep(place)
        temporary, file = _create(place)
        try:
            with file:
                yield file
                file.flush()
                os.fsync(file.fileno())
                temporary.replace(place)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        _sync_folder(place.parent)
    except OSError as error:
        raise NotWritten(error.errno, error.strerror or str(error), str(path)) from error


def check_writable(path: Path | str) -> Path:
    """What `replacing` would meet, as far as it can be known before there is anything to write. Raises OSError."""
    place = place_of(path)
    if len(os.fsencode(place.name)) > os.pathconf(place.parent, "PC_NAME_MAX"):
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), str(path))
    _sweep(place)
    temporary, file = _create(place)
    file.close()
    temporary.unlink()
    return place


def _stem(place: Path) -> str:
    """Short, however long the name is, and another for another name."""
    return f".orind-{zlib.crc32(os.fsencode(place.name)):08x}."


def _create(place: Path) -> tuple[Path, BufferedWriter]:
    """A new file, locked while its writer lives: the lock, unlike a process number, holds across containers."""
    while True:
        temporary = place.with_name(f"{_stem(place)}{os.urandom(4).hex()}.tmp")
        file = temporary.open("xb")
        with suppress(OSError):                        # a file system without locks: nobody can sweep there either
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if temporary.exists():
            return temporary, file
        file.close()                                   # swept between its birth and its lock


def _sweep(place: Path) -> None:
    """Removes what killed writers of this very file left: nobody holds its lock."""
    for left in place.parent.glob(f"{_stem(place)}*.tmp"):
        with suppress(OSError), left.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            left.unlink()


def _sync_folder(folder: Path) -> None:
    """A rename is durable only when its folder is."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
