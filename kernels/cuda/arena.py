"""The arena on the device, and what lies in it: one part of the memory, or, for tests, one for each buffer.

Called by `executor.py`. In the second form a store beside its buffer leaves an allocation, which the virtual GPU
reports; in one part it only changes another tensor.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from math import prod

import numpy as np

from ..ir.program import Program, Tensor
from .memory import DeviceMemory


@dataclass(frozen=True, slots=True)
class Part:
    """Bytes [offset, offset + size) of the program's arena, and their address on the device."""

    offset: int
    size: int
    address: int


class Arena:
    """Zeroed device memory for a program's tensors. `parts` are in the order of their offsets."""

    def __init__(self, memory: DeviceMemory, program: Program, separate: bool) -> None:
        """`separate`: the program's buffers share no bytes, and each is a part of its own, without slack behind."""
        sizes = buffers(program) if separate else {0: program.arena_bytes}
        self.parts = [Part(offset, size, memory.zeros(size)) for offset, size in sorted(sizes.items())]
        self._offsets = [part.offset for part in self.parts]

    def address(self, offset: int) -> int:
        """Where byte `offset` of the program's arena lies on the device."""
        part = self.parts[bisect_right(self._offsets, offset) - 1]
        return part.address + offset - part.offset


def buffers(program: Program) -> dict[int, int]:
    """Bytes from a buffer's offset to the end of its last frame, by offset; the last frame counts without padding."""
    sizes: dict[int, int] = {}
    for tensor in program.tensors.values():
        size = (program.batch - 1) * tensor.frame_bytes + _frame(tensor)
        sizes[tensor.offset] = max(size, sizes.get(tensor.offset, 0))
    return sizes


def _frame(tensor: Tensor) -> int:
    shape = tensor.shape if tensor.layout == "flat" else (*tensor.shape[:2], tensor.pitch)
    return prod(shape) * np.dtype(tensor.dtype).itemsize
