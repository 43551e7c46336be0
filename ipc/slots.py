"""Frame slots: a ring of equal buffers in one memfd, filled by main (or a decode worker), read by the engines.

Main owns the ring for the life of the process: `take` before a frame is copied, `give` after its outcome is out.
Invariant: each `take` raises the slot's serial, so that main, where it still holds an older one, is found out instead
of reading, or giving back, another frame's slot. Children are told indices and check no serial: a decode worker keeps
its slots until it has answered or its end of file is here; an engine only reads, and once it is fenced, when a slot may
already hold another frame, its answers are discarded by their epoch.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from . import shared_memory
from .errors import SlotError


@dataclass(slots=True)
class Slot:
    """The right to use slot `index` until `give`; `serial` tells this use from the next."""

    index: int
    serial: int


class SlotRing:
    """`count` slots of at least `size` bytes each, page aligned (so that CUDA can register one alone). Main's end."""

    def __init__(self, count: int, size: int, *, sealed: bool = False) -> None:
        """Allocates all of it. sealed: nobody else can ever map it writable, so there can be no decode workers.

        Raises IpcError when memory is short.
        """
        if count < 1 or size < 1:
            raise SlotError(f"{count} slots of {size} bytes: both must be at least 1")
        self.count = count
        self.size = size
        self.pitch = shared_memory.round_to_page(size)
        self.fd = shared_memory.create("orind-slots", count * self.pitch)
        self._map = shared_memory.map_fd(self.fd, count * self.pitch, writable=True)
        if sealed:
            shared_memory.seal_writes(self.fd)
        whole = memoryview(self._map)
        self._views = [whole[i * self.pitch : i * self.pitch + size] for i in range(count)]
        whole.release()
        self._serials = [0] * count
        self._busy = [False] * count
        self._free = list(range(count - 1, -1, -1))  # a stack: the slot used last is the one still in the caches

    @property
    def free(self) -> int:
        return len(self._free)

    def take(self) -> Slot | None:
        """A slot, or None when all are in use: the caller answers the frame `dropped`, it does not wait."""
        if not self._free:
            return None
        index = self._free.pop()
        self._busy[index] = True
        self._serials[index] = serial = self._serials[index] + 1
        return Slot(index, serial)

    def give(self, slot: Slot) -> None:
        """Return it. Raises SlotError when it was given already: then two frames would share one buffer."""
        self._check(slot)
        self._busy[slot.index] = False
        self._free.append(slot.index)

    def view(self, slot: Slot) -> memoryview:
        """Writable bytes of a slot in use, `size` long. Raises SlotError for a slot that was recycled."""
        self._check(slot)
        return self._views[slot.index]

    def _check(self, slot: Slot) -> None:
        index, serial = slot.index, slot.serial
        if not 0 <= index < self.count or self._serials[index] != serial or not self._busy[index]:
            raise SlotError(f"slot {index} serial {serial} is not in use: it was given back before")

    def readonly_fd(self) -> int:
        """A new descriptor for an engine, which can only map it for reading. The caller closes it."""
        return shared_memory.reopen_readonly(self.fd)

    def writable_fd(self) -> int:
        """A new descriptor for a decode worker, which writes planes into slots. The caller closes it."""
        return os.dup(self.fd)

    def close(self) -> None:
        if self.fd >= 0:
            shared_memory.release(self._map, self._views)
            os.close(self.fd)
            self.fd = -1

    def __enter__(self) -> SlotRing:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class SlotReader:
    """A child's end of the ring. Takes ownership of fd and closes it once mapped."""

    def __init__(self, fd: int, count: int, size: int, *, writable: bool = False) -> None:
        """`writable` is for decode workers and needs a writable descriptor. Raises IpcError, OSError (not allowed)."""
        self.count = count
        self.size = size
        pitch = shared_memory.round_to_page(size)
        try:
            # not whole: all that is mapped is unmapped before the kernel says that a killed process is gone
            self._map = shared_memory.map_fd(fd, count * pitch, writable=writable, whole=False)
        finally:
            os.close(fd)
        whole = memoryview(self._map)
        self._views = [whole[i * pitch : i * pitch + size] for i in range(count)]
        whole.release()

    def view(self, index: int) -> memoryview:
        """Bytes of slot `index`; read-only unless opened writable. Raises SlotError outside the ring."""
        if not 0 <= index < self.count:
            raise SlotError(f"slot {index} is outside the ring of {self.count}")
        return self._views[index]

    def close(self) -> None:
        shared_memory.release(self._map, self._views)
