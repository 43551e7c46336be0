"""The steps on flat float32 tensors in ONNX's logical order: the float tail, and what an FP32 body has between images.

Truth values are 0.0 and 1.0. Names as in `steps.py`, which lists all steps.
"""

from __future__ import annotations

from dataclasses import dataclass

from .step import Step


@dataclass(frozen=True, slots=True)
class Unary(Step):
    """Float tail: y = op(x); exp, sigmoid, softplus are the polynomials of kernels/pre/polynomial.py."""

    op: str
    x: str
    y: str
    alpha: float = 0.0
    beta: float = 0.0
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Binary(Step):
    """add, subtract, multiply, divide (one IEEE rounding), maximum, minimum, power, modulo, fmod, prelu; equal,
    greater, less, greater_equal, less_equal, and, or, xor (0 or 1). `constant` replaces the one of a and b that is "".
    """

    op: str
    a: str
    b: str
    y: str
    constant: str = ""


@dataclass(frozen=True, slots=True)
class Transpose(Step):
    """Axes of a flat tensor in the order `perm`."""

    x: str
    y: str
    perm: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Join(Step):
    """Concat along `axis` of flat tensors."""

    xs: tuple[str, ...]
    y: str
    axis: int


@dataclass(frozen=True, slots=True)
class Cut(Step):
    """Slice of a flat tensor: (start, stop, step) an axis; stop -1 with a negative step means past the first."""

    x: str
    y: str
    ranges: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class Softmax(Step):
    """Float tail; statistics in float32, toleranced."""

    x: str
    y: str
    axis: int


@dataclass(frozen=True, slots=True)
class Select(Step):
    """y = condition != 0 ? a : b, broadcast; `constant_a`, `constant_b` replace a and b where those are ""."""

    condition: str
    a: str
    b: str
    y: str
    constant_a: str = ""
    constant_b: str = ""


@dataclass(frozen=True, slots=True)
class Reduce(Step):
    """sum, mean, max, min or prod over `axes`; y has y's own shape (axes kept as 1 or dropped). Toleranced."""

    op: str
    x: str
    y: str
    axes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MatMul(Step):
    """NumPy's matmul in float32, toleranced; `constant` replaces a or b, whichever is ""."""

    a: str
    b: str
    y: str
    constant: str = ""


@dataclass(frozen=True, slots=True)
class Normalise(Step):
    """(x - mean) / sqrt(variance + epsilon) over the axes from `axis` on, times `scale`, plus `bias` ("": none).

    Statistics in float32, toleranced.
    """

    x: str
    y: str
    axis: int
    epsilon: float
    scale: str = ""
    bias: str = ""


@dataclass(frozen=True, slots=True)
class Take(Step):
    """y = x at `index` (a constant, int64, not negative) along `axis`."""

    x: str
    y: str
    index: str
    axis: int


@dataclass(frozen=True, slots=True)
class Spread(Step):
    """x broadcast to y's shape."""

    x: str
    y: str


@dataclass(frozen=True, slots=True)
class Border(Step):
    """y is `value` everywhere but at `corner` (a place an axis), where x is put."""

    x: str
    y: str
    corner: tuple[int, ...]
    value: float = 0.0


@dataclass(frozen=True, slots=True)
class Fill(Step):
    """y is a constant: a graph output that does not depend on the input."""

    y: str
    constant: str


@dataclass(frozen=True, slots=True)
class WindowConv(Step):
    """Convolution of a flat tensor (1, C, *size) with any number of spatial axes; weight (M, C / groups, *kernel)."""

    x: str
    y: str
    weight: str
    bias: str
    stride: tuple[int, ...]
    pads: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int = 1


@dataclass(frozen=True, slots=True)
class WindowPool(Step):
    """max (border -inf) or sum times `multiplier` (the shape of y's spatial axes) over windows of a flat tensor."""

    x: str
    y: str
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    pads: tuple[int, ...]
    dilation: tuple[int, ...]
    multiplier: str = ""


FLAT_STEPS: tuple[type[Step], ...] = (Unary, Binary, Transpose, Join, Cut, Softmax, Select, Reduce, MatMul, Normalise,
                                      Take, Spread, Border, Fill, WindowConv, WindowPool)
