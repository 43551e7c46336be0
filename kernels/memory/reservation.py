"""An engine's one piece of memory and the pool in it; what lies in it comes and goes by blocks that carry their owner.

Made by `devices.py` of a size known beforehand, before any plan is opened. Invariant: nothing that was taken is ever
moved, and what is taken twice is cleared in between.
"""

from __future__ import annotations

import mmap
import time
from contextlib import suppress

import numpy as np
import numpy.typing as npt

from ..ir.errors import ProgramError
from .pool import Block, Pool

Bytes = npt.NDArray[np.uint8]
GROUP = "plans"
"""All that an engine holds lives as long as its generation."""


class Reservation:
    """Accounting that both devices share. `what` names the memory for people."""

    what = ""

    def __init__(self, size: int, reserve: int) -> None:
        self.pool = Pool(size, reserve)

    def take(self, nbytes: int, owner: str) -> Block:
        """Raises PoolExhausted."""
        return self.pool.allocate(nbytes, owner, GROUP, time.monotonic_ns())

    def give_back(self, block: Block) -> None:
        self.pool.free(block)

    def device_free(self) -> int | None:
        """Bytes that the device has free, by whomever it is used; None where it is the host's memory."""
        return None


class HostReservation(Reservation):
    """One anonymous mapping. Pages cost nothing until they are written, so the emergency reserve is free until then."""

    what = "one anonymous mapping"

    def __init__(self, size: int, reserve: int) -> None:
        """Raises ProgramError where the address space or the limit of memory is short."""
        super().__init__(size, reserve)
        try:
            self._mapping = mmap.mmap(-1, max(size, mmap.PAGESIZE), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as error:
            raise ProgramError(f"device cpu: {size >> 20} MB of memory cannot be reserved: {error.strerror}") from error
        with suppress(OSError):  # a kernel without large pages refuses; NumPy asks for them for large arrays too
            self._mapping.madvise(mmap.MADV_HUGEPAGE)
        self._bytes: Bytes = np.frombuffer(self._mapping, np.uint8)
        self._clean = True

    def array(self, block: Block) -> Bytes:
        """The block's bytes, zeroed when it is new."""
        return self._bytes[block.offset : block.offset + block.nbytes]

    def take(self, nbytes: int, owner: str) -> Block:
        block = super().take(nbytes, owner)
        if not self._clean:
            self.array(block).fill(0)
        return block

    def give_back(self, block: Block) -> None:
        super().give_back(block)
        self._clean = False
