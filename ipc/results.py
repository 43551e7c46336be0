"""The result area: one memfd per engine, where it leaves float32 rows that main copies into the answer.

Made by main, which maps it to read; one engine maps it to write, so that a fenced engine can write nowhere that matters
any more.
Invariant: a block is believed only if the batch id written before the rows and the one written after them are both the
id that the ANSWER names; main owns the dimensions and never takes them from the engine.
"""

from __future__ import annotations

import os

import numpy as np
from numpy.typing import NDArray

from . import shared_memory
from .errors import ResultAreaError


class ResultArea:
    """`areas` blocks (one per batch in flight) of `frames` x `rows_max` x `row_width` float32.

    rows_max and row_width are the largest over the models of a generation; narrower rows use the front of a frame's
    part. Main: ResultArea(...) and writable_fd(); the engine: ResultArea(..., fd=...), which takes ownership of fd.
    """

    def __init__(self, areas: int, frames: int, rows_max: int, row_width: int, fd: int | None = None) -> None:
        if min(areas, frames, rows_max, row_width) < 1:
            raise ResultAreaError(f"result area {areas}x{frames}x{rows_max}x{row_width}: every side must be at least 1")
        self.areas, self.frames = areas, frames
        self.floats = rows_max * row_width
        start, size = _start(areas), self.size_of(areas, frames, rows_max, row_width)
        engine = fd is not None
        self.fd = shared_memory.create("orind-results", size) if fd is None else fd
        try:
            # main only reads, makes it while it serves, and touches no more of it than there are rows
            self._map = shared_memory.map_fd(self.fd, size, writable=engine, whole=engine)
        except BaseException:
            os.close(self.fd)
            raise
        self._marks: NDArray[np.uint64] = np.frombuffer(self._map, np.uint64, 2 * areas).reshape(areas, 2)
        rows: NDArray[np.float32] = np.frombuffer(self._map, np.float32, areas * frames * self.floats, start)
        self._rows = rows.reshape(areas, frames, self.floats)

    @staticmethod
    def size_of(areas: int, frames: int, rows_max: int, row_width: int) -> int:
        """Bytes of such an area."""
        return shared_memory.round_to_page(_start(areas) + areas * frames * rows_max * row_width * 4)

    def writable_fd(self) -> int:
        """A new descriptor for the engine. The caller closes it."""
        return os.dup(self.fd)

    def begin(self, area: int, batch_id: int) -> None:
        """Engine: the rows of this area are being rewritten for batch_id."""
        self._checked(area, 0)
        self._marks[area, 1] = 0
        self._marks[area, 0] = batch_id

    def finish(self, area: int, batch_id: int) -> None:
        """Engine: they are complete. Send the ANSWER after this: the system call orders the writes on Arm too."""
        self._checked(area, 0)
        self._marks[area, 1] = batch_id

    def rows(self, area: int, frame: int, row_width: int) -> NDArray[np.float32]:
        """Engine: where a frame's rows go, float32 (as many as fit, row_width)."""
        self._checked(area, frame)
        if not 0 < row_width <= self.floats:
            raise ResultAreaError(f"rows of {row_width} numbers do not fit a frame's {self.floats}")
        fit = self.floats // row_width
        return self._rows[area, frame, : fit * row_width].reshape(fit, row_width)

    def read(self, area: int, frame: int, batch_id: int, rows: int, row_width: int) -> NDArray[np.float32]:
        """Main: a copy, float32 (rows, row_width). Raises ResultAreaError when out of range or not this batch's."""
        whole = self.rows(area, frame, row_width)
        if not 0 <= rows <= len(whole):
            raise ResultAreaError(f"engine announces {rows} rows of {row_width}: at most {len(whole)} fit")
        copy = whole[:rows].copy()
        before, after = self._marks[area].tolist()
        if before != batch_id or after != batch_id:
            raise ResultAreaError(f"result area {area} holds batch {before}/{after}, not {batch_id}: rewritten early")
        return copy

    def _checked(self, area: int, frame: int) -> None:
        if not (0 <= area < self.areas and 0 <= frame < self.frames):
            raise ResultAreaError(f"result {area}/{frame} lies outside {self.areas} areas of {self.frames} frames")

    def close(self) -> None:
        if self.fd >= 0:
            del self._marks, self._rows
            shared_memory.release(self._map, [])
            os.close(self.fd)
            self.fd = -1


def _start(areas: int) -> int:
    """Where the rows begin, behind the two batch ids of each area."""
    return -(-2 * areas * 8 // 64) * 64
