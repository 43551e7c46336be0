"""ConvI8 and ConvF32: columns, one matrix product a tile, epilogue. Bound by `executor.py`.

INT8 goes through float32 BLAS, which is exact in any order where 128 * sum|w| <= 2^24 (255 for a uint8 input); where
that fails, K is split and the parts are added as int32 (CONTRACT.md).
"""

from __future__ import annotations

from functools import partial

import numpy as np
import numpy.typing as npt

from ..ir.steps import ConvF32, ConvI8
from .binding import Array, Binding, Call, Floats
from .epilogue import finish_f32, finish_i8, sums_in_place
from .gather import Segments, Window, columns, tiles, width_of

EXACT = 1 << 24
SMALL_PRODUCT = 1_000_000
"""OpenBLAS does a product of at most so many multiply-adds without packing: up to a quarter faster (measured)."""
SMALL_WEIGHT = 15_000
"""Numbers of the largest weight whose blocks then still have 64 rows, so that packing it anew costs little."""


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


def products(matrix: Floats, weight: Floats, out: Floats) -> list[Call]:
    """Calls for out = matrix @ weight, in near-equal blocks of rows where that pays."""
    count = 1 if weight.size > SMALL_WEIGHT else -(-matrix.shape[0] * weight.size // SMALL_PRODUCT)
    rows = -(-matrix.shape[0] // count)
    return [partial(np.matmul, matrix[first:first + rows], weight, out=out[first:first + rows])
            for first in range(0, matrix.shape[0], rows)]


def group_segments(step: ConvI8 | ConvF32, at: Binding) -> list[Segments]:
    """The channel segments that each group reads, relative to x's view."""
    segments = at.tensor(step.x).segments
    if step.groups == 1:
        return [segments]
    per = width_of(segments) // step.groups           # grouped steps have one segment (lowering sees to it)
    return [((g * per, per),) for g in range(step.groups)]


def packed_rows(segments: Segments, weight: Array) -> Floats:
    """(kh, kw, channels, N) to (K, N) float32 without the rows of channel pads; of a group where there are groups."""
    used = np.concatenate([np.arange(a, a + n) for a, n in segments])
    return np.ascontiguousarray(weight[:, :, used].reshape(-1, weight.shape[-1]), dtype=np.float32)


def conv_i8(step: ConvI8, at: Binding, frame: int) -> list[Call]:
    x, y = at.view(step.x, frame), at.view(step.y, frame)
    segments = group_segments(step, at)
    weight = at.weight(step.weight, segments[0], partial(packed_rows, segments[0]))
    k, n = weight.shape
    bias = at.constant(step.bias)
    window = Window(step.kernel, step.stride, step.pads, step.dilation)
    whole = step.groups == 1 and exact_bias(bias) and len(exact_parts(weight, largest_code(x.dtype))) == 1
    calls: list[Call] = []
    for first, end in tiles(y.shape[0], y.shape[1] * (k + n) * 4):
        sums = at.scratch("sums", ((end - first) * y.shape[1], n))
        if whole:
            matrix, fill = columns(at, x, segments[0], window, first, end, y.shape[1])
            calls += [*fill, *products(matrix, weight, sums)]
        else:
            calls += _in_parts(step, at, x, segments, window, (first, end), y.shape[1], weight, bias, sums)
        calls += finish_i8(step, at, sums, y, first, end, frame, bias.astype(np.float32) if whole else None)
    return calls


def _in_parts(step: ConvI8, at: Binding, x: Array, segments: list[Segments], window: Window, rows: tuple[int, int],
              width: int, weight: Floats, bias: Array, sums: Floats) -> list[Call]:
    """sums = float32 of the int32 sum over groups and exact parts of K, bias included."""
    groups, n = step.groups, weight.shape[1]
    total = at.scratch("total", sums.shape, np.int32)
    part_sums = at.scratch("part", sums.shape)
    as_int = at.scratch("as int", sums.shape, np.int32)
    calls: list[Call] = [partial(np.copyto, total, bias)]
    size = n if groups == 1 else at.tensor(step.y).shape[2] // groups
    for g in range(groups):
        out = slice(g * size, (g + 1) * size)
        flat = np.ascontiguousarray(weight[:, out])
        matrix, fill = columns(at, x, segments[g], window, *rows, width)
        calls += fill
        for k0, k1 in exact_parts(flat, largest_code(x.dtype)):
            block = part_sums.reshape(-1)[:len(sums) * flat.shape[1]].reshape(len(sums), -1)
            whole = as_int.reshape(-1)[:block.size].reshape(block.shape)
            calls.append(partial(np.matmul, matrix[:, k0:k1], flat[k0:k1], out=block))
            calls.append(partial(np.copyto, whole, block, casting="unsafe"))
            calls.append(partial(np.add, total[:, out], whole, out=total[:, out]))
    calls.append(partial(np.copyto, sums, total, casting="unsafe"))
    return calls


def conv_f32(step: ConvF32, at: Binding, frame: int) -> list[Call]:
    x, y = at.view(step.x, frame), at.view(step.y, frame)
    segments = group_segments(step, at)
    weight = at.weight(step.weight, segments[0], partial(packed_rows, segments[0]))
    k, n = weight.shape
    groups = step.groups
    bias = at.constant(step.bias)
    window = Window(step.kernel, step.stride, step.pads, step.dilation)
    calls: list[Call] = []
    for first, end in tiles(y.shape[0], y.shape[1] * (k + n) * 4):
        sums = sums_in_place(step, at, y, first, end)
        size = n if groups == 1 else at.tensor(step.y).shape[2] // groups
        if groups * size < n:
            calls.append(partial(sums[:, groups * size:].fill, 0))
        for g in range(groups):
            matrix, fill = columns(at, x, segments[g], window, first, end, y.shape[1])
            calls += fill
            if groups == 1:
                calls += products(matrix, weight, sums)
                continue
            flat = np.ascontiguousarray(weight[:, g * size:(g + 1) * size])
            block = at.scratch("part", (len(sums), size))
            calls.append(partial(np.matmul, matrix, flat, out=block))
            calls.append(partial(np.copyto, sums[:, g * size:(g + 1) * size], block))
        calls += finish_f32(step, at, sums, y, first, end, frame, bias)
    return calls
