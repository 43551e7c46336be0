"""What follows a sum: bias, requantise or activation, residual, bounds, and the store; a tile of output rows at a time.

Callers: convolution, depthwise. Channel vectors are tiled to rows of at least 512 numbers, since NumPy's cost lies in
the number of inner loops.
"""

from __future__ import annotations

import numpy as np

from ..ir.steps import ConvF32, ConvI8
from .activations import activate
from .binding import Array, Binding, Call, Floats

ROW = 512


def repeated(pixels: int, channels: int) -> int:
    """How many pixels make one row of at least ROW numbers; a divisor of `pixels`."""
    for count in range(-(-ROW // channels), 0, -1):
        if pixels % count == 0:
            return count
    return 1


def finish_i8(step: ConvI8, at: Binding, sums: Floats, y: Array, first: int, end: int, frame: int,
              bias: Floats | None) -> list[Call]:
    """Calls that turn exact float32 sums (pixels, span) into rows [first, end) of y; `bias` None: it is in already."""
    pixels, n = sums.shape
    rep = repeated(pixels, n)
    wide = sums.reshape(pixels // rep, rep * n)
    gain = np.tile(at.constant(step.multiplier), rep)
    calls: list[Call] = []
    if bias is not None and bias.any():
        wide_bias = np.tile(bias, rep)
        calls.append(lambda: np.add(wide, wide_bias, out=wide))
    calls.append(lambda: np.multiply(wide, gain, out=wide))
    target = y[first:end]
    image = sums.reshape(target.shape)
    if y.dtype == np.float32:
        return [*calls, lambda: np.copyto(target, image)]
    if step.table:
        table = at.constant(step.table)
        index = at.scratch("index", wide.shape, np.int64)
        calls += [lambda: np.clip(wide, np.float32(-512), np.float32(511), out=wide),
                  lambda: np.rint(wide, out=wide),
                  lambda: np.add(wide, np.float32(512), out=wide),
                  lambda: np.copyto(index, wide, casting="unsafe")]
        codes = at.scratch("codes", wide.shape, np.int8)
        if not step.residual:
            calls.append(lambda: np.take(table, index, out=codes, mode="clip"))
            shaped = codes.reshape(target.shape)
            calls.append(lambda: np.copyto(target, shaped))
            return [*calls, *clear_pads(at, step.y, target, bool(table[512]))]
        real = table.astype(np.float32)
        calls.append(lambda: np.take(real, index, out=wide, mode="clip"))
    if step.residual:
        other = at.view(step.residual, frame)[first:end]
        scaled = at.scratch("residual", target.shape)
        scale = np.float32(step.residual_multiplier)
        calls += [lambda: np.copyto(scaled, other),
                  lambda: np.multiply(scaled, scale, out=scaled),
                  lambda: np.add(image, scaled, out=image)]
    low, high = np.float32(step.low), np.float32(step.high)
    calls += [lambda: np.clip(wide, low, high, out=wide),
              lambda: np.rint(wide, out=wide),
              lambda: np.copyto(target, image, casting="unsafe")]
    return [*calls, *clear_pads(at, step.y, target, step.low > 0 or step.high < 0 or bool(step.table))]


def clear_pads(at: Binding, name: str, target: Array, needed: bool) -> list[Call]:
    """Calls that put 0 into the channels between segments, where the arithmetic itself would not leave 0 there."""
    if not needed:
        return []
    tensor = at.tensor(name)
    pads = np.setdiff1d(np.arange(tensor.span), tensor.channels())
    return [lambda c=int(c): target[..., c].fill(0) for c in pads]


def finish_f32(step: ConvF32, at: Binding, sums: Floats, y: Array, first: int, end: int, frame: int,
               bias: Floats) -> list[Call]:
    """Calls that add the bias, apply activation, residual and bounds, and store rows [first, end) of y."""
    pixels, n = sums.shape
    rep = repeated(pixels, n)
    wide = sums.reshape(pixels // rep, rep * n)
    calls: list[Call] = []
    if bias.any():
        wide_bias = np.tile(bias, rep)
        calls.append(lambda: np.add(wide, wide_bias, out=wide))
    if step.activation:
        calls += activate(step.activation, step.alpha, step.beta, wide, wide, at.scratch("gate", wide.shape))
    target = y[first:end]
    image = sums.reshape(target.shape)
    if step.residual:
        other = at.view(step.residual, frame)[first:end]
        calls.append(lambda: np.add(image, other, out=image))
    if step.low is not None or step.high is not None:
        calls.append(lambda: np.clip(wide, step.low, step.high, out=wide))
    calls.append(lambda: np.copyto(target, image))
    needed = step.activation in ("Sigmoid", "HardSigmoid") or (step.low or 0) > 0 or (step.high or 0) < 0
    return [*calls, *clear_pads(at, step.y, target, needed)]
