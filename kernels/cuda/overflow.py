"""Flags of float16 steps whose result does not fit, one int32 for each step and frame: set by kernels, read once a run.

Called by `executor.py`. They lie together, so that one copy brings them all; flags stay set until they are taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from .device import Device


class OverflowFlags:
    """`steps` by name, in running order."""

    def __init__(self, device: Device, steps: Sequence[str], frames: int) -> None:
        self._device, self._steps = device, list(steps)
        self._row_bytes = 4 * frames
        self._nbytes = self._row_bytes * len(self._steps)
        self._memory = device.zeros(self._nbytes)
        self._host = device.pinned(self._nbytes)[:self._nbytes]
        self._flags = self._host.view(np.int32).reshape(len(self._steps), frames)

    def address(self, step: str) -> int:
        """Of a step's flags on the device, one int32 a frame; 0 for a step that has none."""
        return int(self._memory) + self._row_bytes * self._steps.index(step) if step in self._steps else 0

    def fetch(self) -> None:
        """Enqueues the copy that `take` reads."""
        if self._steps:
            self._device.copy_2d(self._host, int(self._memory), (self._nbytes, 1, self._nbytes), False)

    def take(self) -> Iterator[tuple[int, str]]:
        """(frame, step) of every flag that the last copy brought; clears them on the device."""
        if self._flags.any():
            self._device.driver.memset_d8(self._memory, 0, self._nbytes)
            for row, frame in np.argwhere(self._flags):
                yield int(frame), self._steps[row]

    def free(self) -> None:
        self._memory.free()
