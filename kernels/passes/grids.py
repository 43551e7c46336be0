"""What a convolution knows of the codes that a quantised file gave its weights (`importer/quantised.py`): attributes.

Callers: passes that make one multiply-accumulate of another. A pass that scales weights scales the grid alike, or the
codes of the file are lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..ir.graph import Node

GRIDS = ("weight_grid", "bias_grid", "bias_codes")
"""The scale of each output channel's weight codes; scale and int32 code of each channel's bias."""


def grids(node: Node) -> dict[str, Any]:
    """Those of the attributes that the node has."""
    return {key: node.attrs[key] for key in GRIDS if key in node.attrs}


def without_grids(node: Node) -> dict[str, Any]:
    """All other attributes."""
    return {key: value for key, value in node.attrs.items() if key not in GRIDS}


def joined_grids(members: Sequence[Node]) -> dict[str, Any]:
    """Those of convolutions whose channels follow each other in one: kept where every member has them."""
    return {key: tuple(value for node in members for value in node.attrs[key]) for key in GRIDS
            if all(key in node.attrs for node in members)}


def scaled_grid(conv: Node, gain: npt.NDArray[np.float64]) -> dict[str, Any]:
    """The attributes of a convolution whose weights are multiplied by one number a channel: their codes stay."""
    attrs = dict(conv.attrs)
    if "weight_grid" in attrs:
        factor = np.where(gain == 0, 1.0, np.abs(gain))
        attrs["weight_grid"] = tuple((np.array(attrs["weight_grid"]) * factor).tolist())
    return attrs
