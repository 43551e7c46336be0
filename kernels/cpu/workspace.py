"""What the steps of a plan share at every batch size: weights in the executor's own form, scratch, frames of zeros.

Used by `binding.py`. Its memory is NumPy's until `settle`: so a plan can be bound once to see what it needs, and again
in memory that was reserved for exactly that (prepared.py). Invariant: once settled, it allocates nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from ..ir.errors import ProgramError
from ..ir.program import ALIGN

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]
Fact = TypeVar("Fact")


def aligned(nbytes: int) -> Bytes:
    """Zeroed bytes, aligned to ALIGN."""
    raw = np.zeros(nbytes + ALIGN, dtype=np.uint8)
    skip = -raw.ctypes.data % ALIGN
    return raw[skip:skip + nbytes]


def _address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])


def rounded(nbytes: int) -> int:
    return nbytes + -nbytes % ALIGN


class Carver:
    """Hands out the bytes of one piece of memory from its begin on, each part aligned to ALIGN."""

    def __init__(self, memory: Bytes) -> None:
        self._memory, self._at = memory, 0

    def take(self, nbytes: int) -> Bytes:
        at, self._at = self._at, self._at + rounded(nbytes)
        assert self._at <= len(self._memory), "the piece was made for what is taken from it"
        return self._memory[at:at + nbytes]


class Workspace:
    """`scratch` is valid within one step; `frame` and `fact` for ever."""

    def __init__(self) -> None:
        self._facts: dict[str, Any] = {}
        self._scratch: dict[str, Bytes] = {}
        self._frames: dict[tuple[object, ...], Array] = {}
        self._settled = False

    def fact(self, key: str, make: Callable[[], Fact]) -> Fact:
        """Something derived from constants, made once for all frames, tiles and batch sizes."""
        if key not in self._facts:
            self._refuse_if_settled(f"the form {key} of a weight")
            self._facts[key] = make()
        return self._facts[key]  # type: ignore[no-any-return]

    def scratch(self, key: str, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
        """Two requests of one key overlap, two keys never do."""
        need = int(np.prod(shape)) * np.dtype(dtype).itemsize
        if key not in self._scratch or self._scratch[key].nbytes < need:
            self._refuse_if_settled(f"{need} bytes of scratch '{key}'")
            self._scratch[key] = aligned(need)
        return self._scratch[key][:need].view(dtype).reshape(shape)

    def frame(self, key: tuple[object, ...], shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """A buffer of zeros; whoever shares a key writes the same inner part only, so the borders stay 0."""
        full = (*key, *shape, dtype.name)
        if full not in self._frames:
            self._refuse_if_settled(f"a frame of {shape}")
            self._frames[full] = np.zeros(shape, dtype=dtype)
        return self._frames[full]

    def spoil_scratch(self, pattern: int) -> None:
        """Overwrites all scratch: for memory checks, between steps."""
        for memory in self._scratch.values():
            memory.fill(pattern)

    # -- memory of somebody else's -------------------------------------------------------------------------------

    def weight_bytes(self, constants: Iterable[Array]) -> int:
        """What `settle` needs for the weights that are no views of `constants`."""
        return sum(rounded(value.nbytes) for value in self._own(constants).values())

    def work_bytes(self) -> int:
        """What `settle` needs for scratch and frames."""
        return sum(rounded(value.nbytes) for value in (*self._scratch.values(), *self._frames.values()))

    def settle(self, constants: Iterable[Array], weights: Bytes, work: Bytes) -> None:
        """Move into this memory, of `weight_bytes` and zeroed `work_bytes`. What was bound before is void."""
        carver, own = Carver(weights), self._own(constants)
        for key in list(own):
            value = own.pop(key)  # the last but one reference: it goes when the copy is made, not when all are
            dense = np.empty_like(value, order="K", subok=False)  # the same order of axes, without gaps
            moved = np.ndarray(value.shape, value.dtype, carver.take(value.nbytes).data, 0, dense.strides)
            moved[...] = value
            self._facts[key] = moved
        carver = Carver(work)
        self._scratch = {key: carver.take(value.nbytes) for key, value in self._scratch.items()}
        self._frames = {
            key: carver.take(value.nbytes).view(value.dtype).reshape(value.shape)
            for key, value in self._frames.items()
        }
        self._settled = True

    def _own(self, constants: Iterable[Array]) -> dict[str, Array]:
        """Derived arrays that lie in memory of their own; others are views of the plan's file."""
        places = sorted((_address(constant), constant.nbytes) for constant in constants)
        starts = [start for start, _ in places]

        def borrowed(value: Array) -> bool:
            address = _address(value)
            start, nbytes = places[max(bisect_right(starts, address) - 1, 0)] if places else (0, 0)
            return start <= address < start + nbytes

        return {k: v for k, v in self._facts.items() if isinstance(v, np.ndarray) and not borrowed(v)}

    def _refuse_if_settled(self, what: str) -> None:
        if self._settled:
            raise ProgramError(f"a step needs {what}, which it did not need when its memory was measured: report this")
