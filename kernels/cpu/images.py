"""Steps on NHWC images other than convolutions: pooling, upsampling, adds, products, tables, copies.

Bound by `executor.py`. Integer arithmetic is CONTRACT.md's, in float32 where it is exact there.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from ..ir.steps import (
    ActivationF32,
    AddF32,
    AddI8,
    AveragePoolF32,
    AveragePoolI8,
    Copy,
    MaxPool,
    MulF32,
    MulI8,
    RequantiseI8,
    TableI8,
    Upsample,
)
from .activations import activate
from .binding import Array, Binding, Call
from .convolution import EXACT, largest_code
from .epilogue import bounds, clear_pads


def output(at: Binding, x: Array, name: str, frame: int) -> tuple[Array, list[Call]]:
    """The part of y that x's channels reach, and calls that clear the rest (y may be padded where a tight x is not)."""
    y = at.view(name, frame)
    rest = y[..., x.shape[2]:]
    return y[..., :x.shape[2]], [partial(rest.fill, 0)] if rest.size else []


def max_pool(step: MaxPool, at: Binding, frame: int) -> list[Call]:
    """Separable: the maximum down the rows, which lie in one piece, then along what is left of them."""
    x = at.view(step.x, frame)
    y, calls = output(at, x, step.y, frame)
    least = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
    (kh, kw), (sy, sx), (dy, dx) = step.kernel, step.stride, step.dilation
    top, left, _, _ = step.pads
    ho, wo, channels = y.shape
    if (kh, kw) == (1, 1) and not top and not left:
        source = x[:(ho - 1) * sy + 1:sy, :(wo - 1) * sx + 1:sx]
        return [*calls, partial(np.copyto, y, source)]
    rows = max((ho - 1) * sy + (kh - 1) * dy + 1, top + x.shape[0])
    line = max((wo - 1) * sx + (kw - 1) * dx + 1, left + x.shape[1])
    framed = x
    if x.shape != (rows, line, channels):
        framed = at.scratch("pool frame", (rows, line, channels), x.dtype)
        inner = framed[top:top + x.shape[0], left:left + x.shape[1]]
        calls += [partial(framed.fill, least), partial(np.copyto, inner, x)]
    down = at.scratch("pool rows", (ho, line, channels), x.dtype)

    def fold(source: Array, target: Array, taps: int, stride: int, dilation: int, size: int) -> None:
        cut = [source[i * dilation:i * dilation + (size - 1) * stride + 1:stride] for i in range(taps)]
        if taps == 1:
            calls.append(partial(np.copyto, target, cut[0]))
            return
        calls.append(partial(np.maximum, cut[0], cut[1], out=target))
        for tap in cut[2:]:
            calls.append(partial(np.maximum, target, tap, out=target))
    fold(framed, down, kh, sy, dy, ho)
    fold(down.transpose(1, 0, 2), y.transpose(1, 0, 2), kw, sx, dx, wo)
    return calls


def _pool_sums(step: AveragePoolI8, at: Binding, x: Array, y: Array) -> tuple[Array, list[Call]]:
    """Window sums (Ho, Wo, C) as float32. Sums of codes are int32, rounded once, where float32 would not hold them."""
    (kh, kw), (sy, sx) = step.kernel, step.stride
    top, left, _, _ = step.pads
    ho, wo, channels = y.shape
    rows = max((ho - 1) * sy + kh, top + x.shape[0])
    line = max((wo - 1) * sx + kw, left + x.shape[1])
    held = x.dtype.kind == "f" or kh * kw * largest_code(x.dtype) <= EXACT
    kind = np.float32 if held else np.int32
    framed = at.scratch("pool frame", (rows, line, channels), kind)
    inner = framed[top:top + x.shape[0], left:left + x.shape[1]]
    sums = at.scratch("pool sums", (ho, wo, channels), kind)
    calls: list[Call] = [partial(framed.fill, 0), partial(np.copyto, inner, x)]
    if (ho, wo) == (1, 1):
        window = framed[:kh, :kw]
        calls.append(partial(np.sum, window, axis=(0, 1), out=sums[0, 0]))
    else:
        view = np.lib.stride_tricks.sliding_window_view(framed, (kh, kw), axis=(0, 1))
        view = view[::sy, ::sx][:ho, :wo]
        calls.append(partial(np.sum, view, axis=(3, 4), out=sums))
    if held:
        return sums, calls
    rounded = at.scratch("pool rounded", sums.shape)
    return rounded, [*calls, partial(np.copyto, rounded, sums, casting="unsafe")]


def average_pool_i8(step: AveragePoolI8, at: Binding, frame: int) -> list[Call]:
    x = at.view(step.x, frame)
    y, clear = output(at, x, step.y, frame)
    sums, calls = _pool_sums(step, at, x, y)
    gain = at.constant(step.multiplier)[:, :, None]
    return [*clear, *calls, partial(np.multiply, sums, gain, out=sums), *store(sums, y, -128, 127)]


def average_pool_f32(step: AveragePoolF32, at: Binding, frame: int) -> list[Call]:
    x = at.view(step.x, frame)
    y, clear = output(at, x, step.y, frame)
    sums, calls = _pool_sums(step, at, x, y)
    gain = at.constant(step.multiplier)[:, :, None]
    return [*clear, *calls, partial(np.multiply, sums, gain, out=y)]


def store(v: Array, y: Array, low: int, high: int) -> list[Call]:
    """q = RNE(clamp(v, low, high)) into y; v is overwritten."""
    least, most = np.float32(low), np.float32(high)
    return [partial(np.clip, v, least, most, out=v), partial(np.rint, v, out=v),
            partial(np.copyto, y, v, casting="unsafe")]


def upsample(step: Upsample, at: Binding, frame: int) -> list[Call]:
    x = at.view(step.x, frame)
    y, calls = output(at, x, step.y, frame)
    fy, fx = step.factors
    for r in range(fy):
        for s in range(fx):
            calls.append(partial(np.copyto, y[r::fy, s::fx], x))
    return calls


def add_i8(step: AddI8, at: Binding, frame: int) -> list[Call]:
    a, b = at.view(step.a, frame), at.view(step.b, frame)
    y, calls = output(at, a, step.y, frame)
    left, right = at.scratch("left", a.shape), at.scratch("right", a.shape)
    ma, mb = np.float32(step.a_multiplier), np.float32(step.b_multiplier)
    return [*calls, partial(np.copyto, left, a), partial(np.multiply, left, ma, out=left), partial(np.copyto, right, b),
            partial(np.multiply, right, mb, out=right), partial(np.add, left, right, out=left),
            *store(left, y, step.low, step.high)]


def add_f32(step: AddF32, at: Binding, frame: int) -> list[Call]:
    a, b = at.view(step.a, frame), at.view(step.b, frame)
    y, calls = output(at, a, step.y, frame)
    combine = np.add if step.sign > 0 else np.subtract
    calls.append(partial(combine, a, b, out=y))
    if step.low is not None or step.high is not None:
        calls.append(partial(np.clip, y, *bounds(step.low, step.high), out=y))
    return calls


def mul_i8(step: MulI8, at: Binding, frame: int) -> list[Call]:
    a, b = at.view(step.a, frame), at.view(step.b, frame)
    y, calls = output(at, a, step.y, frame)
    left, right = at.scratch("left", a.shape), at.scratch("right", b.shape)
    gain = np.float32(step.multiplier)
    return [*calls, partial(np.copyto, left, a), partial(np.copyto, right, b),
            partial(np.multiply, left, right, out=left), partial(np.multiply, left, gain, out=left),
            *store(left, y, step.low, step.high)]


def mul_f32(step: MulF32, at: Binding, frame: int) -> list[Call]:
    a, b = at.view(step.a, frame), at.view(step.b, frame)
    y, calls = output(at, a, step.y, frame)
    return [*calls, partial(np.multiply, a, b, out=y)]


def table_i8(step: TableI8, at: Binding, frame: int) -> list[Call]:
    x = at.view(step.x, frame)
    y, calls = output(at, x, step.y, frame)
    table = at.constant(step.table)
    index, codes = at.scratch("index", x.shape, np.int64), at.scratch("codes", x.shape, np.int8)
    return [*calls, partial(np.add, x, 128, out=index, dtype=np.int64),
            partial(np.take, table, index, out=codes, mode="clip"), partial(np.copyto, y, codes),
            *clear_pads(at, step.y, at.view(step.y, frame), bool(table[128]))]


def requantise_i8(step: RequantiseI8, at: Binding, frame: int) -> list[Call]:
    x = at.view(step.x, frame)
    y, calls = output(at, x, step.y, frame)
    v, gain = at.scratch("left", x.shape), np.float32(step.multiplier)
    return [*calls, partial(np.copyto, v, x), partial(np.multiply, v, gain, out=v), *store(v, y, step.low, step.high),
            *clear_pads(at, step.y, at.view(step.y, frame), step.low > 0 or step.high < 0)]


def activation_f32(step: ActivationF32, at: Binding, frame: int) -> list[Call]:
    x = at.view(step.x, frame)
    y, calls = output(at, x, step.y, frame)
    if step.activation:
        calls += activate(step.activation, step.alpha, step.beta, x, y, at.scratch("gate", x.shape))
    else:
        calls.append(partial(np.clip, x, *bounds(step.low, step.high), out=y))
    needed = step.activation in ("Sigmoid", "HardSigmoid") or (step.low or 0) > 0 or (step.high or 0) < 0
    return [*calls, *clear_pads(at, step.y, at.view(step.y, frame), needed)]


def copy(step: Copy, at: Binding, frame: int) -> list[Call]:
    x, y = at.view(step.x, frame), at.view(step.y, frame)
    calls: list[Call] = [partial(y.fill, 0)] if step.clear else []
    row, column = step.corner
    place = y[row:row + x.shape[0], column:column + x.shape[1]]
    for source, target, count in step.runs:
        calls.append(partial(np.copyto, place[..., target:target + count], x[..., source:source + count]))
    starts = [start for start, _ in at.tensor(step.y).segments] + [y.shape[2]]
    for (start, count), following in zip(at.tensor(step.y).segments, starts[1:], strict=True):
        touched = any(start <= target < start + count for _, target, _ in step.runs)
        if touched and start + count < following and not step.clear:   # the buffer's bytes may have been another's
            calls.append(partial(y[..., start + count:following].fill, 0))
    return calls
