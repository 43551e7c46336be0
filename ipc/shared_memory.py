"""Anonymous shared memory: memfds of a fixed size, and the right to write them given or withheld by descriptor.

Used by slots.py, results.py and stats_page.py. Made in main before any child exists, handed to children as
descriptors. Invariant: no holder can change the size (sealed), so no reader can be killed by SIGBUS; and a read-only
descriptor cannot be mapped writable.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os

from . import meminfo
from .errors import IpcError

PAGE = mmap.PAGESIZE
# Linux 5.1 (JetPack 6 has 5.15); the fcntl module of Python 3.10 does not name it.
F_SEAL_FUTURE_WRITE = 0x0010


def round_to_page(size: int) -> int:
    return -(-size // PAGE) * PAGE


def create(name: str, size: int) -> int:
    """A memfd of `size` bytes, every page allocated now, sealed against resizing. Raises IpcError when memory is short.

    Allocating now turns "no memory" into a clear message at start instead of SIGBUS at some frame. Mode 0400, so that a
    process without root cannot reopen a read-only descriptor for writing through /proc. The size is held against the
    free memory first: fallocate on a memfd does not fail in time, the kernel kills this process instead (measured).
    """
    free = meminfo.room()
    if size > free:
        raise IpcError(
            f"shared memory {name!r} of {size} bytes cannot be allocated, {free} are free: "
            "use fewer or smaller slots, or give the board more free memory"
        )
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.posix_fallocate(fd, 0, size)
    except OSError as error:
        os.close(fd)
        raise IpcError(
            f"shared memory {name!r} of {size} bytes cannot be allocated ({error.strerror}): "
            "use fewer or smaller slots"
        ) from None
    os.fchmod(fd, 0o400)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    return fd


def seal_writes(fd: int) -> None:
    """From now on no new mapping of this memory can write, not even root's; mappings made before still do."""
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, F_SEAL_FUTURE_WRITE | fcntl.F_SEAL_SEAL)


def reopen_readonly(fd: int) -> int:
    """A new descriptor of the same memory, O_RDONLY (and close-on-exec): PROT_WRITE on it is refused by the kernel."""
    return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)


def map_fd(fd: int, size: int, *, writable: bool, whole: bool = True) -> mmap.mmap:
    """Map fd. Raises IpcError when it is smaller than `size` (a foreign descriptor), OSError when not allowed.

    `whole`: every page now, so that the resident memory of the process does not grow with the first use of a slot. That
    takes as long as allocating does (up to 1 ms a MiB), and time again when the process is killed, until it is seen to
    be gone (scripts/bench_failover, detection of sigkill).
    """
    held = os.fstat(fd).st_size
    if held < size:
        raise IpcError(f"shared memory holds {held} bytes, {size} were announced: the processes disagree")
    protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    return mmap.mmap(fd, size, mmap.MAP_SHARED | (mmap.MAP_POPULATE if whole else 0), protection)


def release(mapping: mmap.mmap, views: list[memoryview]) -> None:
    """Release views, then unmap. Where somebody still borrows a view, the mapping lives until the borrower lets go."""
    for view in views:
        with contextlib.suppress(BufferError):
            view.release()
    views.clear()
    with contextlib.suppress(BufferError):
        mapping.close()
