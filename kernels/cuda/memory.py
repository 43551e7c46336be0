"""Device memory: one allocation for an engine, with the pool in it; or, for tests and benchmarks, one for each part.

Used by `executor.py` and `devices.py`. In the second form an access beside its part leaves an allocation, which the
virtual GPU reports; in the first it only changes another part.
"""

from __future__ import annotations

import hashlib
from typing import Any, Protocol

import numpy as np

from ..ir.errors import ProgramError
from ..memory.pool import ALIGN, Block
from ..memory.reservation import Reservation
from .convolution import Array
from .device import Device


class WeightMemory(Protocol):
    """Where what a kernel only reads is put; addresses as the device has them."""

    def upload(self, data: Array) -> int: ...
    def free(self) -> None: ...


class DeviceMemory(WeightMemory, Protocol):
    """Where an executor's parts come from."""

    def zeros(self, nbytes: int) -> int: ...


class SharedWeights:
    """Equal bytes are put into `memory` once: most weights of a plan are packed alike for all its batch sizes."""

    def __init__(self, memory: WeightMemory) -> None:
        self._memory = memory
        self._places: dict[bytes, int] = {}

    def upload(self, data: Array) -> int:
        key = hashlib.sha256(np.ascontiguousarray(data).data).digest()
        if key not in self._places:
            self._places[key] = self._memory.upload(data)
        return self._places[key]

    def free(self) -> None:
        """Other batch sizes may still read it: it goes with `memory`."""


class Allocations:
    """An allocation for each part; they go with the last reference, or by `free`."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._held: list[Any] = []

    def upload(self, data: Array) -> int:
        self._held.append(self._device.upload(data))
        return int(self._held[-1])

    def zeros(self, nbytes: int) -> int:
        self._held.append(self._device.zeros(nbytes))
        return int(self._held[-1])

    def free(self) -> None:
        for allocation in self._held:
            allocation.free()
        self._held.clear()


class Sizes:
    """No memory: counts what a `Part` must hold for the same calls."""

    def __init__(self) -> None:
        self.nbytes = 0

    def upload(self, data: Array) -> int:
        return self.zeros(data.nbytes)

    def zeros(self, nbytes: int) -> int:
        self.nbytes += max(nbytes, 1) + -max(nbytes, 1) % ALIGN
        return 0

    def free(self) -> None:
        """Nothing is held."""


class DeviceReservation(Reservation):
    """One cuMemAlloc."""

    what = "one allocation on the GPU"

    def __init__(self, device: Device, size: int, reserve: int) -> None:
        """Raises ProgramError with the figures where the GPU does not have it free, which on a board is everybody's
        memory: the kernel would kill for it. The driver's error where somebody else was faster."""
        super().__init__(size, reserve)
        self.device = device
        if size > (free := int(device.driver.mem_get_info()[0])):
            raise ProgramError(
                f"device cuda: an engine's plans need {size >> 20} MiB of the GPU's memory, {free >> 20} MiB are free"
            )
        self._memory = device.driver.mem_alloc(max(size, 1))

    def device_free(self) -> int | None:
        """Raises DeviceFault."""
        with self.device.watched():
            return int(self.device.driver.mem_get_info()[0])

    def part(self, nbytes: int, owner: str) -> Part:
        """Raises PoolExhausted."""
        block = self.take(nbytes, owner)
        return Part(self.device, int(self._memory) + block.offset, block)

    def close(self) -> None:
        """Raises DeviceFault."""
        with self.device.watched():
            self._memory.free()


class Part:
    """A block of the reservation, handed out from its begin on, 256 bytes aligned. Its owner gives the block back."""

    def __init__(self, device: Device, address: int, block: Block) -> None:
        self._device, self._address, self.block = device, address, block
        self._sizes = Sizes()

    def upload(self, data: Array) -> int:
        at = self._take(data.nbytes)
        if data.nbytes:
            self._device.driver.memcpy_htod(at, np.ascontiguousarray(data))
        return at

    def zeros(self, nbytes: int) -> int:
        at = self._take(nbytes)
        self._device.driver.memset_d8(at, 0, max(nbytes, 1))
        return at

    def _take(self, nbytes: int) -> int:
        at = self._address + self._sizes.nbytes
        self._sizes.zeros(nbytes)
        assert self._sizes.nbytes <= self.block.size, "the block was made for what is taken from it"
        return at

    def free(self) -> None:
        """The memory is the reservation's."""
