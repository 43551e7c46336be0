"""What a step has to do, as numbers only: the size of its matrix product, the bytes it moves, the arithmetic a value.

Made from a program's step for `model.py`. A step that is neither a convolution nor a window is a stream: each value
read and written once. So a kind of step that is new costs what its bytes cost until it is described better here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..ir.program import Program, Tensor
from ..ir.steps import Step

# Instructions a value of an epilogue (f32 from int, multiply, clamp, round, pack; SASS of the prototype's kernel: 7),
# and what a residual or a table adds.
EPILOGUE = 7
EPILOGUE_EXTRA = 2
# A stream of bytes: load, convert, one operation, convert, a quarter of a store; an assumption, seldom the bound.
STREAM = 5


@dataclass(frozen=True, slots=True)
class Work:
    """One step of a whole batch.

    `kind` matrix: `groups` products of (m, k) by (k, n), `epilogue` instructions an output. window (depthwise, pools)
    and stream: `outputs` values of `instructions` lane instructions each. `dtype` is that of the operands. Bytes:
    `weight_bytes` are read once a run and lie cold in DRAM; `read_bytes` and `write_bytes` are activations.
    `kernel_width`: taps of a filter row, which overlap in L1.
    """

    name: str
    kind: str
    dtype: str
    outputs: int
    weight_bytes: int
    read_bytes: int
    write_bytes: int
    instructions: float
    m: int = 0
    n: int = 0
    k: int = 0
    groups: int = 1
    kernel_width: int = 1

    @property
    def macs(self) -> int:
        return self.m * self.n * self.k * self.groups


def _bytes(tensor: Tensor, batch: int) -> int:
    """Bytes of a view; pads between its channels count, since they are moved."""
    size = np.dtype(tensor.dtype).itemsize
    if tensor.layout == "flat":
        return batch * int(np.prod(tensor.shape)) * size
    return batch * tensor.shape[0] * tensor.shape[1] * tensor.span * size


def work_of(step: Step, program: Program) -> Work:
    """The work of one step of a program. Total: every kind of step has an answer."""
    batch, tensors = program.batch, program.tensors
    reads = [tensors[name] for name in step.reads()]
    writes = [tensors[name] for name in step.writes()]
    read = sum(_bytes(t, batch) for t in reads)
    written = sum(_bytes(t, batch) for t in writes)
    outputs = sum(_bytes(t, batch) // np.dtype(t.dtype).itemsize for t in writes)
    dtype = reads[0].dtype if reads else "float32"
    kernel: tuple[int, int] = getattr(step, "kernel", (1, 1))
    taps = kernel[0] * kernel[1]
    if not hasattr(step, "weight") or not reads or reads[0].layout != "nhwc":
        kind = "window" if hasattr(step, "kernel") else "stream"
        return Work(step.name, kind, dtype, outputs, 0, read, written, taps - 1 + STREAM)
    x, y = reads[0], writes[0]
    item = 1 if dtype in ("int8", "uint8") else np.dtype(dtype).itemsize
    extra = sum(EPILOGUE_EXTRA for key in ("table", "residual") if getattr(step, key, ""))
    if type(step).__name__.startswith("Depthwise"):
        return Work(step.name, "window", dtype, outputs, taps * y.span * item, read, written,
                    taps + EPILOGUE + extra, kernel_width=kernel[1])
    groups: int = getattr(step, "groups", 1)
    k, n = taps * x.span // groups, -(-y.span // groups)
    return Work(step.name, "matrix", dtype, outputs, k * n * groups * item, read, written, EPILOGUE + extra,
                batch * y.shape[0] * y.shape[1], n, k, groups, kernel[1])
