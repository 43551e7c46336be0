"""ConvI8 and ConvF32: columns, one matrix product a tile, epilogue. Bound by `executor.py`.

INT8 goes through float32 BLAS, which is exact in any order where 128 * sum|w| <= 2^24 (255 for a uint8 input); where
that fails, K is split and the parts are added as int32 (CONTRACT.md).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..ir.steps import ConvF32, ConvI8
from .binding import Array, Binding, Call, Floats
from .epilogue import finish_f32, finish_i8
from .gather import Window, columns, tiles

EXACT = 1 << 24


def largest_code(dtype: npt.DTypeLike) -> int:
    return 255 if np.dtype(dtype) == np.uint8 else 128


def exact_parts(weight: Array, largest: int) -> list[tuple[int, int]]:
    """Ranges of K (rows of weight (K, N)) whose sums are exact in float32, as few as a greedy cut gives."""
    size = np.abs(weight.astype(np.int64)) * largest
    if size.sum(0).max(initial=0) <= EXACT:
        return [(0, len(size))]
    parts, first = [], 0
    total = np.zeros(weight.shape[1], dtype=np.int64)
    for k in range(len(size)):
        if (total + size[k]).max(initial=0) > EXACT:
            parts.append((first, k))
            first, total = k, np.zeros_like(total)
        total = total + size[k]
    return [*parts, (first, len(size))]


def exact_bias(bias: Array) -> bool:
    """Whether float32 holds the bias without rounding, so that one float addition equals the int32 sum rounded."""
    return bool((bias.astype(np.float32).astype(np.int64) == bias).all())


def conv_i8(step: ConvI8, at: Binding, frame: int) -> list[Call]:
    x, y = at.view(step.x, frame), at.view(step.y, frame)
    stored = at.constant(step.weight)
    n = stored.shape[-1]
    bias = at.constant(step.bias)
    weight = at.weight(step.weight, lambda w: w.astype(np.float32))
    window = Window(step.kernel, step.stride, step.pads, step.dilation)
    k = int(np.prod(stored.shape[:3]))
    parts = exact_parts(stored.reshape(k, n), largest_code(x.dtype)) if step.groups == 1 else [(0, k)]
    whole = len(parts) == 1 and exact_bias(bias) and step.groups == 1
    calls: list[Call] = []
    for first, end in tiles(y.shape[0], y.shape[1] * (step.groups * k + n) * 4):
        sums = at.scratch("sums", ((end - first) * y.shape[1], n))
        if whole:
            matrix, fill = columns(at, x, window, first, end, y.shape[1])
            flat = weight.reshape(k, n)
            calls += [*fill, lambda a=matrix, b=flat, out=sums: np.matmul(a, b, out=out)]
        else:
            calls += _in_parts(step, at, x, window, (first, end), y.shape[1], weight, bias, sums)
        calls += finish_i8(step, at, sums, y, first, end, frame, bias.astype(np.float32) if whole else None)
    return calls


def _in_parts(step: ConvI8, at: Binding, x: Array, window: Window, rows: tuple[int, int], width: int, weight: Floats,
              bias: Array, sums: Floats) -> list[Call]:
    """sums = float32 of the int32 sum over groups and exact parts of K, bias included."""
    groups, per, n = step.groups, weight.shape[2], weight.shape[3]
    total = at.scratch("total", sums.shape, np.int32)
    part_sums = at.scratch("part", sums.shape)
    as_int = at.scratch("as int", sums.shape, np.int32)
    calls: list[Call] = [lambda: np.copyto(total, bias)]
    size = n if groups == 1 else at.tensor(step.y).shape[2] // groups
    for g in range(groups):
        out = slice(g * size, (g + 1) * size)
        flat = np.ascontiguousarray(weight.reshape(-1, n)[:, out])
        part_x = x[:, :, g * per:(g + 1) * per]
        matrix, fill = columns(at, part_x, window, *rows, width)
        calls += fill
        for k0, k1 in exact_parts(flat, largest_code(x.dtype)):
            block = part_sums.reshape(-1)[:len(sums) * flat.shape[1]].reshape(len(sums), -1)
            whole = as_int.reshape(-1)[:block.size].reshape(block.shape)
            calls.append(lambda a=matrix[:, k0:k1], b=flat[k0:k1], block=block: np.matmul(a, b, out=block))
            calls.append(lambda whole=whole, block=block: np.copyto(whole, block, casting="unsafe"))
            calls.append(lambda t=total[:, out], whole=whole: np.add(t, whole, out=t))
    calls.append(lambda: np.copyto(sums, total, casting="unsafe"))
    return calls


def conv_f32(step: ConvF32, at: Binding, frame: int) -> list[Call]:
    x, y = at.view(step.x, frame), at.view(step.y, frame)
    weight = at.constant(step.weight)
    per, n = weight.shape[2:]
    groups = step.groups
    bias = at.constant(step.bias)
    window = Window(step.kernel, step.stride, step.pads, step.dilation)
    k = int(np.prod(weight.shape[:3]))
    calls: list[Call] = []
    for first, end in tiles(y.shape[0], y.shape[1] * (groups * k + n) * 4):
        sums = at.scratch("sums", ((end - first) * y.shape[1], n))
        size = n if groups == 1 else at.tensor(step.y).shape[2] // groups
        if groups * size < n:
            calls.append(lambda s=sums[:, groups * size:]: s.fill(0))
        for g in range(groups):
            matrix, fill = columns(at, x[:, :, g * per:(g + 1) * per] if groups > 1 else x, window, first, end,
                                   y.shape[1])
            calls += fill
            if groups == 1:
                calls.append(lambda a=matrix, b=weight.reshape(k, n), out=sums: np.matmul(a, b, out=out))
                continue
            flat = np.ascontiguousarray(weight.reshape(k, n)[:, g * size:(g + 1) * size])
            block = at.scratch("part", (len(sums), size))
            calls.append(lambda a=matrix, b=flat, out=block: np.matmul(a, b, out=out))
            calls.append(lambda s=sums[:, g * size:(g + 1) * size], block=block: np.copyto(s, block))
        calls += finish_f32(step, at, sums, y, first, end, frame, bias)
    return calls
