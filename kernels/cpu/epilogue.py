"""What follows a sum: bias, requantise or activation, residual, bounds, and the store; a tile of output rows at a time.

Callers: convolution, depthwise. Channel vectors are tiled to rows of at least ROW numbers, since NumPy's cost lies in
the number of inner loops.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from ..ir.steps import ConvF32, ConvI8
from .activations import activate
from .binding import Array, Binding, Call, Floats

ROW = 4096
ROUND = np.float32(3 << 22)
ROUND_BITS = 0x4B400000
LONGEST = 1 << 16
"""Reach of the longest table that takes the place of a clamp."""


def repeated(pixels: int, channels: int) -> int:
    """How many pixels make one row of about ROW numbers; a divisor of `pixels`."""
    for count in range(-(-ROW // channels), 0, -1):
        if pixels % count == 0:
            return count
    return 1


def finish_i8(step: ConvI8, at: Binding, sums: Floats, y: Array, first: int, end: int, frame: int,
              bias: Floats | None) -> list[Call]:
    """Calls that turn exact float32 sums into rows [first, end) of y; `bias` None: it is in already.

    sums: (pixels, span of y).
    """
    pixels, n = sums.shape
    rep = repeated(pixels, n)
    wide = sums.reshape(pixels // rep, rep * n)
    gain = np.tile(at.constant(step.multiplier), rep)
    calls: list[Call] = []
    if bias is not None and bias.any():
        wide_bias = np.tile(bias, rep)
        calls.append(partial(np.add, wide, wide_bias, out=wide))
    calls.append(partial(np.multiply, wide, gain, out=wide))
    target = y[first:end]
    image = sums.reshape(target.shape)
    if y.dtype == np.float32:
        return [*calls, partial(np.copyto, target, image)]
    if step.table:
        table = at.constant(step.table)
        calls += _index(wide, _reach(step, at), index := at.scratch("index", wide.shape, np.int64))
        entries = at.fact(f"{step.table} of {step.weight}:entries", partial(_unrolled, table, _reach(step, at)))
        if not step.residual:
            straight = target.flags.c_contiguous
            codes = target.reshape(wide.shape) if straight else at.scratch("codes", wide.shape, np.int8)
            calls.append(partial(np.take, entries, index, out=codes, mode="wrap"))
            if not straight:
                calls.append(partial(np.copyto, target, codes.reshape(target.shape)))
            return [*calls, *clear_pads(at, step.y, target, bool(table[512]))]
        real = at.fact(f"{step.table} of {step.weight}:real entries", partial(entries.astype, np.float32))
        calls.append(partial(np.take, real, index, out=wide, mode="wrap"))
    if step.residual:
        other = at.view(step.residual, frame)[first:end]
        scaled = at.scratch("residual", target.shape)
        scale = np.float32(step.residual_multiplier)
        calls += [partial(np.copyto, scaled, other),
                  partial(np.multiply, scaled, scale, out=scaled),
                  partial(np.add, image, scaled, out=image)]
    low, high = np.float32(step.low), np.float32(step.high)
    calls += [partial(np.clip, wide, low, high, out=wide),
              partial(np.rint, wide, out=wide),
              partial(np.copyto, target, image, casting="unsafe")]
    needed = step.low > 0 or step.high < 0 or bool(step.table)
    return [*calls, *clear_pads(at, step.y, target, needed)]


def _reach(step: ConvI8, at: Binding) -> int:
    """A whole number that no |v| in front of the table can pass, from the weights themselves; at most LONGEST."""
    def bound(weight: Array) -> int:
        sums = np.abs(weight.astype(np.int64)).reshape(-1, weight.shape[-1]).sum(0) * 255
        largest = (sums + np.abs(at.constant(step.bias).astype(np.int64))) * at.constant(step.multiplier).astype(float)
        return int(min(np.ceil(largest.max() * 1.001) + 1, LONGEST))
    return at.fact(f"{step.weight}:reach", partial(bound, at.constant(step.weight)))


def _index(v: Floats, reach: int, index: Array) -> list[Call]:
    """Calls for index = RNE(v) + reach, which is never negative; v is clamped only where it can pass `reach`.

    Adding 1.5 * 2^23 rounds to a whole number, half to even, and leaves that number in the low bits.
    """
    calls: list[Call] = []
    if reach == LONGEST:
        calls.append(partial(np.clip, v, np.float32(-512), np.float32(511), out=v))
    return [*calls, partial(np.add, v, ROUND, out=v),
            partial(np.subtract, v.view(np.int32), np.int32(ROUND_BITS - reach), out=index)]


def _unrolled(table: Array, reach: int) -> Array:
    """The 1,024 entries with the clamp built in: entry i + reach belongs to index i, for -reach <= i <= reach.

    Clamping before or after rounding is the same, since the bounds are whole numbers.
    """
    entries: Array = table[np.clip(np.arange(-reach, reach + 1), -512, 511) + 512]
    return entries


def bounds(low: float | None, high: float | None) -> tuple[np.float32, np.float32]:
    """Both bounds as numbers: `np.clip` with None takes three times as long."""
    return np.float32(-np.inf if low is None else low), np.float32(np.inf if high is None else high)


def sums_in_place(step: ConvF32, at: Binding, y: Array, first: int, end: int) -> Floats:
    """Where a float step may form its sums: in y itself if that lies in one piece and does not take the residual's
    place, else in scratch. (pixels, span of y)"""
    taken = step.residual and at.tensor(step.residual).offset == at.tensor(step.y).offset
    if y.dtype == np.float32 and y.flags.c_contiguous and not taken:
        return y[first:end].reshape(-1, y.shape[2])
    return at.scratch("sums", ((end - first) * y.shape[1], y.shape[2]))


def clear_pads(at: Binding, name: str, target: Array, needed: bool) -> list[Call]:
    """Calls that put 0 into the channels between segments, where the arithmetic itself would not leave 0 there."""
    if not needed:
        return []
    tensor = at.tensor(name)
    kept = set(tensor.channels().tolist())
    return [partial(target[..., c].fill, 0) for c in range(tensor.span) if c not in kept]


def finish_f32(step: ConvF32, at: Binding, sums: Floats, y: Array, first: int, end: int, frame: int,
               bias: Floats) -> list[Call]:
    """Calls that add the bias, apply activation, residual and bounds, and store rows [first, end) of y."""
    pixels, n = sums.shape
    rep = repeated(pixels, n)
    wide = sums.reshape(pixels // rep, rep * n)
    calls: list[Call] = []
    if bias.any():
        wide_bias = np.tile(bias, rep)
        calls.append(partial(np.add, wide, wide_bias, out=wide))
    if step.activation:
        calls += activate(step.activation, step.alpha, step.beta, wide, wide, at.scratch("gate", wide.shape))
    target = y[first:end]
    image = sums.reshape(target.shape)
    if step.residual:
        other = at.view(step.residual, frame)[first:end]
        calls.append(partial(np.add, image, other, out=image))
    if step.low is not None or step.high is not None:
        calls.append(partial(np.clip, wide, *bounds(step.low, step.high), out=wide))
    if not np.may_share_memory(target, image):
        calls.append(partial(np.copyto, target, image))
    needed = step.activation in ("Sigmoid", "HardSigmoid") or (step.low or 0) > 0 or (step.high or 0) < 0
    return [*calls, *clear_pads(at, step.y, target, needed)]
