"""Named work arrays that grow to the largest need and stay: no large allocation once the sizes have been seen.

One for all preprocessors of an engine, which run one after the other. Invariant: an array is valid until the same name
is asked for again, or its picture is done.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

from ..memory.errors import PoolExhausted
from ..memory.pool import Block
from ..memory.reservation import HostReservation
from ..picture import PictureError

_Scalar = TypeVar("_Scalar", bound=np.generic)


class Scratch:
    """One flat buffer a name, in the engine's reservation; without one, NumPy's."""

    def __init__(self, memory: HostReservation | None = None) -> None:
        self._memory = memory
        self._buffers: dict[str, npt.NDArray[np.uint8]] = {}
        self._blocks: dict[str, Block] = {}
        self._grown = False

    def tidy(self) -> None:
        """A picture is done. What grew with it is laid out anew, the largest first, so that no gaps stay."""
        if not self._grown:
            return
        self._grown = False
        sizes = {name: buffer.nbytes for name, buffer in self._buffers.items()}
        self.close()
        for name in sorted(sizes, key=sizes.__getitem__, reverse=True):
            try:
                self._take(name, sizes[name])
            except PictureError:  # whoever needs it asks again, and is told
                return

    def array(self, name: str, shape: tuple[int, ...], dtype: type[_Scalar]) -> npt.NDArray[_Scalar]:
        """A C-ordered array of undefined contents. Raises PictureError where the reservation has no room for it."""
        need = np.dtype(dtype).itemsize
        for extent in shape:
            need *= extent
        buffer = self._buffers.get(name)
        if buffer is None or buffer.nbytes < need:
            buffer = self._take(name, need)
            self._grown = self._memory is not None
        return buffer[:need].view(dtype).reshape(shape)

    def _take(self, name: str, nbytes: int) -> npt.NDArray[np.uint8]:
        if self._memory is None:
            self._buffers[name] = np.empty(nbytes, np.uint8)
            return self._buffers[name]
        self._drop(name)
        try:
            block = self._memory.take(nbytes, f"preprocessing: {name}")
        except PoolExhausted as error:
            raise PictureError(f"the engine's memory has no room to prepare a picture like this: {error}") from error
        self._blocks[name], self._buffers[name] = block, self._memory.array(block)
        return self._buffers[name]

    def _drop(self, name: str) -> None:
        self._buffers.pop(name, None)
        block = self._blocks.pop(name, None)
        if block is not None and self._memory is not None:
            self._memory.give_back(block)

    def close(self) -> None:
        """Give everything back."""
        for name in list(self._buffers):
            self._drop(name)
