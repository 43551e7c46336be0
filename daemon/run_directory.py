"""The daemon's run_dir: made where it is missing, held by the instance lock as long as the daemon lives.

Used by `serve.py`; `problem` by the checker. Invariant: a start that is refused leaves nothing behind that was not
there before it.
"""

from __future__ import annotations

import errno
from contextlib import suppress
from pathlib import Path

from ..ipc.errors import EndpointError
from ..ipc.lock import InstanceLock


def problem(path: Path) -> str | None:
    """Why it can never be made there. Whether the daemon's user may make it is seen at the start only."""
    try:
        standing = next(folder for folder in (path, *path.parents) if folder.exists() or folder.is_symlink())
        return None if standing.is_dir() else f"run_dir: {path}: {standing} is not a folder"
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            return f"run_dir: {path}: {error.strerror}"
        return None  # the daemon's user may look there, this one not; or it is there at the start


class RunDirectory:
    """Use as a context manager. Until `keep` the block's end removes the folders that were made for it."""

    def __init__(self, path: Path) -> None:
        """Raises EndpointError where another instance holds it, OSError where it cannot be made."""
        self.path = path
        self._made = [folder for folder in (path, *path.parents) if not folder.exists()]
        path.mkdir(parents=True, exist_ok=True)
        self._lock = InstanceLock(path / "lock")

    def keep(self) -> None:
        """The daemon serves from it."""
        self._made = []

    def __enter__(self) -> RunDirectory:
        return self

    def __exit__(self, *_: object) -> None:
        if self._made:
            for left in self.path.glob("*.lock"):
                _remove_endpoint(left)
            self._lock.remove()
        self._lock.close()
        for folder in self._made:
            with suppress(OSError):  # not empty: somebody else's files
                folder.rmdir()


def _remove_endpoint(path: Path) -> None:
    """The lock beside an ipc endpoint, and the socket that ZeroMQ leaves there. What another process holds stays, and
    with it the folders.
    """
    with suppress(EndpointError), InstanceLock(path) as lock:
        if path.with_suffix("").is_socket():
            path.with_suffix("").unlink()
        lock.remove()
