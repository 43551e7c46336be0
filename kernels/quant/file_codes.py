"""Weight codes that a quantised ONNX model brings along. Callers: `quantise.py`, `imported.py`.

CONTRACT.md, imported QDQ models. The importer notes the grid of a dequantised weight on the node that multiplies by it;
passes scale weights and grid alike. What is not on its grid any more is coded as any other weight.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..ir.graph import Node
from . import contract
from .contract import Array, Codes, Floats

LEAST_WEIGHT, LARGEST_WEIGHT = -128, 127
OFF_GRID = 1e-3
"""A weight that lies further from a code than this, in codes, was changed by a pass."""


def codes_of_file(node: Node, weight: Array, bias: Array, s_x: float) -> tuple[Codes, Floats,
                                                                             npt.NDArray[np.int64]] | None:
    """(weight codes, scales, bias codes) where the file's own codes can be kept: all fit int8, -128 included."""
    grid = np.array(node.attrs.get("weight_grid", ()), dtype=np.float32)
    if grid.shape != (len(weight),) or not (grid > 0).all():
        return None
    exact = weight.astype(np.float64) / grid.astype(np.float64).reshape((-1,) + (1,) * (weight.ndim - 1))
    codes = np.rint(exact)
    if np.abs(exact - codes).max(initial=0) > OFF_GRID or codes.min(initial=0) < LEAST_WEIGHT \
            or codes.max(initial=0) > LARGEST_WEIGHT:
        return None
    bias_q = contract.bias_codes(bias, s_x, grid)
    own = np.array(node.attrs.get("bias_codes", ()), dtype=np.int64)
    unit = np.array(node.attrs.get("bias_grid", ()), dtype=np.float64)
    if own.shape == bias.shape == unit.shape and np.allclose(own * unit, bias, rtol=1e-6, atol=0) \
            and np.allclose(unit, s_x * grid.astype(np.float64), rtol=1e-6, atol=0):
        bias_q = own
    small = codes.astype(np.int8)
    return (small, grid, bias_q) if contract.sum_fits(small, bias_q, unsigned=True).all() else None
