"""Flags of float16 steps whose result does not fit, one int32 for each step and frame: set by kernels, read once a run.

Called by `executor.py`. They lie together, so that one copy brings them all; flags stay set until they are taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from .device import Device


def flag_bytes(steps: int, frames: int) -> int:
    return 4 * frames * steps


class FlagRows:
    """Where they lie: `steps` by name, in running order, `frames` flags each, from `start` on."""

    def __init__(self, steps: Sequence[str], frames: int, start: int) -> None:
        self.steps, self.frames, self.start = list(steps), frames, start

    @property
    def nbytes(self) -> int:
        return flag_bytes(len(self.steps), self.frames)

    def address(self, step: str) -> int:
        """Of a step's flags on the device, one int32 a frame; 0 for a step that has none."""
        return self.start + 4 * self.frames * self.steps.index(step) if step in self.steps else 0


class OverflowFlags:
    """Brings the flags to the host."""

    def __init__(self, device: Device, rows: FlagRows) -> None:
        self._device, self._rows = device, rows
        self._host = device.pinned(rows.nbytes)[:rows.nbytes]
        self._flags = self._host.view(np.int32).reshape(len(rows.steps), rows.frames)

    def fetch(self) -> None:
        """Enqueues the copy that `take` reads."""
        nbytes = self._rows.nbytes
        if nbytes:
            self._device.copy_2d(self._host, self._rows.start, (nbytes, 1, nbytes), False)

    def take(self) -> Iterator[tuple[int, str]]:
        """(frame, step) of every flag that the last copy brought; clears them on the device."""
        if self._flags.any():
            self._device.driver.memset_d8(self._rows.start, 0, self._rows.nbytes)
            for row, frame in np.argwhere(self._flags):
                yield int(frame), self._rows.steps[row]
