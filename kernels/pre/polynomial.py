"""exp, sigmoid and softplus of our own, from IEEE float32 steps only, so that every executor gets the same bits.

Called by the decoders and by the CPU executor's float tail steps; the CUDA copy follows it step by step. Invariant:
only fmul, fadd, IEEE division, minimum, maximum and integer work on the exponent, each with one rounding and never an
FMA: so the result is bit-identical wherever IEEE float32 holds, whatever the SIMD width or the block.

Largest error against float64, measured over every float32 with 2^-30 <= |x| <= 104 (beyond, the results are constant):
exp 1.00 ulp, sigmoid 2.41 ulp, softplus 2.87 ulp; one unit is 2^-149 where the result is subnormal. NaN gives NaN.
The coefficients are minimax fits (Lawson's method) of our own, relative error below 2^-28 before rounding.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]

EXP_LOW, EXP_HIGH = np.float32(-104.0), np.float32(89.0)  # exp is 0 below, infinity above
LOG2_E = np.float32(1.4426950216293335)
# ln 2 in two parts; the first has 9 bits, so that n * LN2_HIGH is exact for |n| <= 151
LN2_HIGH, LN2_LOW = np.float32(0.693359375), np.float32(-0.00021219444)
ROUND = np.float32(12582912.0)  # 1.5 * 2^23: adding it rounds to a whole number, half to even
ROUND_BITS = np.int32(0x4B400000)
# e^r = 1 + r + r^2 (E0 + E1 r + ...) for |r| <= ln 2 / 2
EXP_TERMS = tuple(np.float32(c) for c in (
    0.4999999403953552, 0.1666652113199234, 0.04166838899254799, 0.00836874544620514, 0.001381453825160861))
# ln(1 + e) = 2 s + s z (L0 + L1 z + ...) with s = e / (2 + e), z = s^2, for 0 <= e <= 1
LOG_TERMS = tuple(np.float32(c) for c in (
    0.6666641235351562, 0.40021705627441406, 0.2799901068210602, 0.28025147318840027))
ONE, TWO, ZERO = np.float32(1.0), np.float32(2.0), np.float32(0.0)

BLOCK = 16_384  # elements at a time: all temporaries of a block stay in the cache


def exp(x: F32, out: F32 | None = None) -> F32:
    """e to the power x, element by element. `out` may be `x` itself. Overflow gives infinity, without a warning."""
    return _blockwise(_exp, x, out)


def sigmoid(x: F32, out: F32 | None = None) -> F32:
    """1 / (1 + e^-x), computed from e^-|x| so that neither side loses digits. `out` may be `x` itself."""
    return _blockwise(_sigmoid, x, out)


def softplus(x: F32, out: F32 | None = None) -> F32:
    """ln(1 + e^x) = max(x, 0) + ln(1 + e^-|x|). `out` may be `x` itself."""
    return _blockwise(_softplus, x, out)


_Block = Callable[[F32, F32, F32, F32], None]  # x, result (may be x), two work arrays


def _blockwise(block: _Block, x: F32, out: F32 | None) -> F32:
    """Runs `block` over flat pieces of x. Raises TypeError or ValueError for another type or shape."""
    if x.dtype != np.float32:
        raise TypeError(f"float32 is needed, not {x.dtype}")
    result = np.empty(x.shape, np.float32) if out is None else out
    if result.dtype != np.float32 or result.shape != x.shape:
        raise ValueError(f"out must be float32 of shape {x.shape}, not {result.dtype} of {result.shape}")
    source = np.ascontiguousarray(x).reshape(-1)
    target = result.reshape(-1) if result.flags.c_contiguous else np.empty(x.size, np.float32)
    work = np.empty((2, min(BLOCK, x.size)), np.float32)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        for start in range(0, x.size, BLOCK):
            piece = source[start : start + BLOCK]
            block(piece, target[start : start + BLOCK], work[0, : piece.size], work[1, : piece.size])
    if not result.flags.c_contiguous:
        result[...] = target.reshape(x.shape)
    return result


def _exp(x: F32, y: F32, n: F32, r: F32) -> None:
    np.minimum(x, EXP_HIGH, out=r)
    np.maximum(r, EXP_LOW, out=r)
    np.multiply(r, LOG2_E, out=n)
    np.add(n, ROUND, out=n)
    # the low bits of n now hold the exponent; keep it in y's memory, x is not needed any more
    power = y.view(np.int32)
    np.subtract(n.view(np.int32), ROUND_BITS, out=power)
    np.subtract(n, ROUND, out=n)
    product = np.multiply(n, LN2_HIGH)
    np.subtract(r, product, out=r)
    np.multiply(n, LN2_LOW, out=product)
    np.subtract(r, product, out=r)
    np.multiply(r, EXP_TERMS[-1], out=n)
    for term in EXP_TERMS[-2::-1]:
        np.add(n, term, out=n)
        np.multiply(n, r, out=n)  # leaves r * (E0 + E1 r + ...)
    np.multiply(n, r, out=n)
    np.add(n, r, out=n)
    np.add(n, ONE, out=n)
    # 2^power in two factors, each a normal number: one rounding, also where the result is subnormal
    half = product.view(np.int32)
    np.right_shift(power, 1, out=half)
    np.subtract(power, half, out=power)
    for part in (half, power):
        np.add(part, np.int32(127), out=part)
        np.left_shift(part, 23, out=part)
    np.multiply(n, product, out=n)
    np.multiply(n, y, out=y)


def _sigmoid(x: F32, y: F32, a: F32, b: F32) -> None:
    negative = np.less(x, ZERO)
    fade = np.abs(x)
    np.negative(fade, out=fade)
    _exp(fade, y, a, b)
    np.copyto(a, ONE)
    np.copyto(a, y, where=negative)
    np.add(y, ONE, out=y)
    np.divide(a, y, out=y)


def _softplus(x: F32, y: F32, a: F32, b: F32) -> None:
    positive = np.maximum(x, ZERO)
    fade = np.abs(x)
    np.negative(fade, out=fade)
    _exp(fade, y, a, b)
    np.add(y, TWO, out=a)
    np.divide(y, a, out=a)  # s
    np.multiply(a, a, out=b)  # z
    np.multiply(b, LOG_TERMS[-1], out=y)
    for term in LOG_TERMS[-2::-1]:
        np.add(y, term, out=y)
        np.multiply(y, b, out=y)
    np.multiply(y, a, out=y)
    np.multiply(a, TWO, out=a)
    np.add(y, a, out=y)
    np.add(y, positive, out=y)
