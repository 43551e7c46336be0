"""Named work arrays that grow to the largest need and stay: no large allocation once the sizes have been seen.

Owned by a Preprocessor. Invariant: an array is valid until the same name is asked for again.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

_Scalar = TypeVar("_Scalar", bound=np.generic)


class Scratch:
    """One flat buffer a name."""

    def __init__(self) -> None:
        self._buffers: dict[str, npt.NDArray[np.uint8]] = {}

    def array(self, name: str, shape: tuple[int, ...], dtype: type[_Scalar]) -> npt.NDArray[_Scalar]:
        """A C-ordered array of undefined contents."""
        need = np.dtype(dtype).itemsize
        for extent in shape:
            need *= extent
        buffer = self._buffers.get(name)
        if buffer is None or buffer.nbytes < need:
            buffer = self._buffers[name] = np.empty(need, np.uint8)
        return buffer[:need].view(dtype).reshape(shape)
