"""Which steps of a program a GPU computes: convolutions, each by a kernel, and upsamplings by two that a convolution's
kernel does while it stores. Pure.

Called by `launching.py`, which launches them, and by the daemon's checker. Steps that are not named here are the CPU's.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ..ir.program import UNIT, Program, Tensor
from ..ir.steps import ConvF16, ConvI8, DepthwiseF16, DepthwiseI8, Step, Upsample
from .convolution import ACTIVATIONS, ceil_div

Convolution = ConvI8 | ConvF16


@dataclass(frozen=True, slots=True)
class Assignment:
    """`convolutions`: of the GPU, by name. `doubled`: what those of them store straight into the image of twice the
    height and width that the step after them makes, by the name of the convolution; they write no y of their own."""

    convolutions: dict[str, Convolution]
    doubled: dict[str, Upsample]
    cpu_steps: tuple[Step, ...]


def assign(program: Program) -> Assignment:
    convolutions = {step.name: step for step in program.steps
                    if isinstance(step, (ConvI8, ConvF16)) and has_kernel(step, program)}
    doubled = {step.name: after for step, after in pairwise(program.steps)
               if isinstance(after, Upsample) and step.name in convolutions
               and _stores_doubled(convolutions[step.name], after, program)}
    done = {*convolutions, *(step.name for step in doubled.values())}
    return Assignment(convolutions, doubled, tuple(step for step in program.steps if step.name not in done))


def has_kernel(step: Convolution, program: Program) -> bool:
    """Whether an instance of source/convolution_*.cu computes it."""
    if isinstance(step, (DepthwiseI8, DepthwiseF16)):
        return False
    if isinstance(step, ConvF16) and step.activation not in ACTIVATIONS:
        return False
    y = program.tensors[step.y]
    # a float32 end is stored channel by channel where it must
    names = (step.x, *([step.residual] if step.residual else []), *([] if y.dtype == "float32" else [step.y]))
    return all(_in_units(program.tensors[name]) for name in names) and _is_addressable(step, program)


def _in_units(tensor: Tensor) -> bool:
    """Whether the view begins at a unit of channels and the unit that it ends in is the buffer's: 16-byte accesses."""
    end = tensor.start + tensor.span
    return tensor.pitch % UNIT == 0 and tensor.start % UNIT == 0 and end + -end % UNIT <= tensor.pitch


def _is_addressable(step: Convolution, program: Program) -> bool:
    """Whether convolution.cuh's numbers hold every place: a window's corner and a tap of it are packed into 32 bits
    each (rows above columns, the corner's moved by 0x4000), bytes of a frame and pixels of a batch counted in 31."""
    x, y = program.tensors[step.x], program.tensors[step.y]
    corners = [(y.shape[i] - 1) * step.stride[i] - step.pads[i] for i in (0, 1)]
    taps = [(step.kernel[i] - 1) * step.dilation[i] for i in (0, 1)]
    if max(step.pads[:2]) > 0x4000 or corners[0] >= 0x4000 or corners[1] >= 0xC000:
        return False
    if taps[0] > 0x7FFF or taps[1] > 0xFFFF:
        return False
    pixel_bytes = x.pitch * np.dtype(x.dtype).itemsize
    far = [[max(corner, pad) for corner, pad in zip(corners, step.pads, strict=False)], taps]
    spans = [(row * x.shape[1] + column) * pixel_bytes for row, column in far]
    frames = [program.tensors[name].frame_bytes for name in (step.x, step.y, step.residual) if name]
    return max(*spans, *frames) < 1 << 31 and program.batch * y.shape[0] * y.shape[1] < 1 << 30


def _stores_doubled(step: Convolution, after: Upsample, program: Program) -> bool:
    """Whether `after` is the only reader of what the convolution makes, and doubles it into bytes that the convolution
    does not read: blocks of one launch run in any order."""
    y, doubled = program.tensors[after.x], program.tensors[after.y]
    if after.factors != (2, 2) or step.y != after.x or y.dtype == "float32" or y.segments != doubled.segments:
        return False
    if ceil_div(y.span, UNIT) != ceil_div(doubled.span, UNIT) or not _in_units(doubled):
        return False
    if doubled.frame_bytes >= 1 << 31:
        return False
    used = [name for other in program.steps for name in (*other.reads(), *other.writes())]
    if [program.tensors[name].buffer for name in (*used, *program.outputs)].count(y.buffer) != 2:
        return False
    return not any(_overlap(program.tensors[name], doubled, program.batch) for name in (step.x, step.residual) if name)


def _overlap(a: Tensor, b: Tensor, frames: int) -> bool:
    """Whether the buffers share bytes, of any frame."""
    return a.offset < b.offset + frames * b.frame_bytes and b.offset < a.offset + frames * a.frame_bytes
