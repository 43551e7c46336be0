"""INT8 scales of a graph whose parallel convolutions are merged: each part keeps its own. Caller: `build.py`.

After calibration and the choice of methods, which look at every part; before layers are chosen for mixed precision, so
that a merged convolution is one layer.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from ..passes.merge_parallel import merge_parallel, part_outputs
from .scales import Scales


def merged_scales(scales: Scales) -> Scales:
    """The same codes from fewer convolutions. The scale of a whole is nominal: its first part's."""
    graph = merge_parallel(scales.graph)
    wholes = {node.output: scales.scale[found[0]] for node in graph.nodes
              if node.op == "Conv" and (found := part_outputs(graph, node.output))}
    return replace(scales, graph=graph, scale={**scales.scale, **wholes},
                   group={**scales.group, **{name: name for name in wholes}})


def channel_scales(scales: Scales) -> dict[str, npt.NDArray[np.float64]]:
    """The scale of each channel of the tensors that are made of parts."""
    found = {}
    for node in scales.graph.nodes:
        if node.op == "Conv" and (parts := part_outputs(scales.graph, node.output)):
            found[node.output] = np.concatenate([np.full(scales.graph.shape(part)[1], scales.scale[part])
                                                 for part in parts])
    return found
