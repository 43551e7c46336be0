"""Where a program's tensors lie in memory: the arena, views of it, and what steps share. Caller: `executor.py`.

Everything is allocated while steps are bound; a bound step allocates nothing large. Scratch is valid within one step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ..ir.errors import ProgramError
from ..ir.program import Program, Tensor
from .workspace import Bytes, Fact, Workspace, aligned

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]
Call = Callable[[], object]


class Binding:
    """Views for one program; `constants` are the plan's tensors (read-only). `arena`: zeroed bytes of the caller's, as
    many as the program's arena has; `workspace`: shared with other batch sizes of the same plan, of which one runs at a
    time. Without them the binding makes its own."""

    def __init__(self, program: Program, constants: Mapping[str, Array], arena: Bytes | None = None,
                 workspace: Workspace | None = None) -> None:
        self.program = program
        self.constants = constants
        self.arena = aligned(program.arena_bytes) if arena is None else arena
        self.workspace = Workspace() if workspace is None else workspace
        self.overflows: dict[int, str] = {}       # frame -> first float16 step that overflowed in this run

    def tensor(self, name: str) -> Tensor:
        return self.program.tensors[name]

    def view(self, name: str, frame: int) -> Array:
        """One frame: (H, W, span) of an image, ONNX's shape of a flat tensor."""
        t = self.program.tensors[name]
        dtype = np.dtype(t.dtype)
        offset = t.offset + frame * t.frame_bytes
        if t.layout == "flat":
            return np.ndarray(t.shape, dtype, self.arena.data, offset)
        h, w, _ = t.shape
        pixel = t.pitch * dtype.itemsize
        return np.ndarray((h, w, t.span), dtype, self.arena.data, offset + t.start * dtype.itemsize,
                          (w * pixel, pixel, dtype.itemsize))

    def all_frames(self, name: str) -> Array:
        """All frames in one array: flat (N, *shape) (a leading 1 is dropped), image (N, H, W, span)."""
        t = self.program.tensors[name]
        first = self.view(name, 0)
        shape, strides = first.shape, first.strides
        if t.layout == "flat" and shape and shape[0] == 1:
            shape, strides = shape[1:], strides[1:]
        return np.lib.stride_tricks.as_strided(first, (self.program.batch, *shape), (t.frame_bytes, *strides))

    def constant(self, name: str) -> Array:
        value = self.constants.get(name)
        if value is None:
            raise ProgramError(f"the plan lacks the tensor '{name}' that its program needs: build it again")
        return value

    def weight(self, name: str, form: object, make: Callable[[Array], Array]) -> Array:
        """A constant in the executor's own form, made once for all frames and steps that need it in this `form`."""
        return self.fact(f"{name}:{form}", lambda: make(self.constant(name)))

    def fact(self, key: str, make: Callable[[], Fact]) -> Fact:
        """See Workspace, here and below."""
        return self.workspace.fact(key, make)

    def scratch(self, key: str, shape: tuple[int, ...], dtype: npt.DTypeLike = np.float32) -> Array:
        return self.workspace.scratch(key, shape, dtype)

    def frame(self, key: tuple[object, ...], shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        return self.workspace.frame(key, shape, dtype)
