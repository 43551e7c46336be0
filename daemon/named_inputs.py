"""What a command was told to read must be there, be a file on a disk (or a folder, where it may be), and be readable.

Callers: the commands that read files which they were given, before any work. A pipe would let them wait for ever, and a
device be read without end. Invariant: what is refused here is Exit.NO_INPUT, or Exit.FAILED where descriptors or the
like are short for now, and nothing was read of it.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterable
from pathlib import Path

from ..ipc.exit_codes import Exit
from .shortages import passes


def refused(command: str, files: Iterable[Path], folders: Iterable[Path] = ()) -> Exit | None:
    """The exit code for the first that cannot be read, the reason being on stderr; `folders` may be files too."""
    for path, folder in (*((file, False) for file in files), *((one, True) for one in folders)):
        try:
            reason, code = _reason(path, folder), Exit.NO_INPUT
        except OSError as error:
            reason = f"cannot be read: {error.strerror}"
            code = Exit.FAILED if passes(error) else Exit.NO_INPUT
        if reason is not None:
            print(f"orind {command}: {path}: {reason}", file=sys.stderr)
            return code
    return None


def _reason(path: Path, folder: bool) -> str | None:
    """Raises OSError."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return "no such file or folder" if folder else "no such file"
    except ValueError:
        return "cannot be read: a path cannot hold a zero byte"
    try:
        mode = os.fstat(fd).st_mode
    finally:
        os.close(fd)
    if stat.S_ISDIR(mode):
        return None if folder else "cannot be read: it is a folder"
    return None if stat.S_ISREG(mode) else "cannot be read: it is a pipe, a socket or a device, not a file"
