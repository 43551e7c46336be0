"""One instance: a flock in the run directory, or beside an ipc socket, held as long as the process lives.

Taken by the daemon before it binds anything, because ZeroMQ does not refuse a second bind of an ipc endpoint: it steals
the path, and the first daemon hears nothing more, without an error. Invariant: the lock dies with the process (kill -9
included) and is not inherited by children (close-on-exec).
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from .errors import EndpointError


class InstanceLock:
    """Holds `path` locked until close(). The file stays; who removes it does so while it is held, and who opened it
    before that is refused: else two processes would lock two files."""

    def __init__(self, path: Path | str) -> None:
        """Raises EndpointError naming the holder's pid, or why the file cannot be made."""
        self.path = Path(path)
        try:
            self.fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o640)
        except OSError as error:
            raise EndpointError(f"lock file {self.path} cannot be opened: {error.strerror}") from None
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not os.fstat(self.fd).st_nlink:
                self.close()
                raise EndpointError(f"lock file {self.path} was removed just now by another orind: start again")
            os.ftruncate(self.fd, 0)
            os.pwrite(self.fd, f"{os.getpid()}\n".encode(), 0)
        except OSError as error:
            text = f"lock file {self.path} cannot be written: {error.strerror}"
            if isinstance(error, BlockingIOError):
                holder = _holder(self.fd)
                text = f"another orind (pid {holder}) holds {self.path}: stop it first, or use another run directory"
            self.close()
            raise EndpointError(text) from None

    def remove(self) -> None:
        """Takes the file away; to be called before close()."""
        self.path.unlink()

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __enter__(self) -> InstanceLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _holder(fd: int) -> str:
    """The process id that the holder wrote down."""
    try:
        return os.pread(fd, 20, 0).decode("ascii", "replace").strip() or "unknown"
    except OSError:
        return "unknown"


def lock_endpoint(endpoint: str) -> InstanceLock | None:
    """The lock that guards an ipc path (beside it, `.lock` appended); None for tcp, where the kernel refuses by itself,
    and for abstract `ipc://@name`, where it does too. Raises EndpointError.
    """
    if not endpoint.startswith("ipc://") or endpoint.startswith("ipc://@"):
        return None
    return InstanceLock(endpoint[len("ipc://") :] + ".lock")
