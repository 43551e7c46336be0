"""FP16 steps: float16 storage, float32 arithmetic, one rounding at the store; and the conversions at their borders.

Bound by `executor.py`. The float32 functions read float16 and write it; here each step's result is looked at after it:
a number that float16 does not hold is noted in the binding, and that frame has no answer.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from ..ir.steps import ActivationF16, AddF16, AveragePoolF16, Convert, ConvF16, DepthwiseF16, MulF16
from .activations import activate
from .binding import Array, Binding, Call
from .convolution import conv_f32
from .depthwise import depthwise_f32
from .epilogue import bounds, clear_pads
from .images import average_pool_f32, output, store


def watch(at: Binding, name: str, y: Array, frame: int) -> list[Call]:
    """A call that notes an overflow of y; none for a float32 end."""
    if y.dtype != np.float16:
        return []
    finite = at.scratch("finite", y.shape, np.bool_)

    def look() -> None:
        np.isfinite(y, out=finite)
        if not finite.all():
            at.overflows.setdefault(frame, name)
    return [look]


def conv_f16(step: ConvF16, at: Binding, frame: int) -> list[Call]:
    return [*conv_f32(step, at, frame), *watch(at, step.name, at.view(step.y, frame), frame)]


def depthwise_f16(step: DepthwiseF16, at: Binding, frame: int) -> list[Call]:
    return [*depthwise_f32(step, at, frame), *watch(at, step.name, at.view(step.y, frame), frame)]


def average_pool_f16(step: AveragePoolF16, at: Binding, frame: int) -> list[Call]:
    return [*average_pool_f32(step, at, frame), *watch(at, step.name, at.view(step.y, frame), frame)]


def _pair(step: AddF16 | MulF16, at: Binding, frame: int, combine: np.ufunc,
          low: float | None = None, high: float | None = None) -> list[Call]:
    a, b = at.view(step.a, frame), at.view(step.b, frame)
    y, calls = output(at, a, step.y, frame)
    left, right = at.scratch("left", a.shape), at.scratch("right", b.shape)
    calls += [partial(np.copyto, left, a), partial(np.copyto, right, b), partial(combine, left, right, out=left)]
    if low is not None or high is not None:
        calls.append(partial(np.clip, left, *bounds(low, high), out=left))
    return [*calls, partial(np.copyto, y, left), *watch(at, step.name, y, frame)]


def add_f16(step: AddF16, at: Binding, frame: int) -> list[Call]:
    return _pair(step, at, frame, np.add if step.sign > 0 else np.subtract, step.low, step.high)


def mul_f16(step: MulF16, at: Binding, frame: int) -> list[Call]:
    return _pair(step, at, frame, np.multiply)


def activation_f16(step: ActivationF16, at: Binding, frame: int) -> list[Call]:
    x = at.view(step.x, frame)
    y, calls = output(at, x, step.y, frame)
    wide = at.scratch("left", x.shape)
    calls.append(partial(np.copyto, wide, x))
    if step.activation:
        calls += activate(step.activation, step.alpha, step.beta, wide, wide, at.scratch("gate", x.shape))
    else:
        calls.append(partial(np.clip, wide, *bounds(step.low, step.high), out=wide))
    needed = step.activation in ("Sigmoid", "HardSigmoid") or (step.low or 0) > 0 or (step.high or 0) < 0
    return [*calls, partial(np.copyto, y, wide), *clear_pads(at, step.y, at.view(step.y, frame), needed),
            *watch(at, step.name, y, frame)]


def convert(step: Convert, at: Binding, frame: int) -> list[Call]:
    x = at.view(step.x, frame)
    y, calls = output(at, x, step.y, frame)
    wide = at.scratch("left", x.shape)
    calls += [partial(np.copyto, wide, x), partial(np.multiply, wide, np.float32(step.multiplier), out=wide)]
    if y.dtype.kind == "f":
        return [*calls, partial(np.copyto, y, wide), *watch(at, step.name, y, frame)]
    return [*calls, *store(wide, y, -128, 127)]
