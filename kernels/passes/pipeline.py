"""The order of the graph passes. Callers: `build.py`, `verify.py`, tests.

`prepare` gives the graph in its own operators, still unfused (calibration needs every tensor); `fuse` what is lowered.
"""

from __future__ import annotations

from ..ir.graph import Graph
from .absorb_input_cast import absorb_input_cast
from .absorb_input_transpose import absorb_input_transpose
from .absorb_pads import absorb_pads
from .decompose import decompose
from .dense_as_convolution import dense_as_convolution
from .fold_batchnorm import fold_batchnorm
from .fold_constants import fold_constants
from .fuse_convolutions import fuse_convolutions
from .recognise_activations import recognise_activations
from .remove_dead import remove_dead
from .rows_as_images import rows_as_images
from .transposed_as_convolution import transposed_as_convolution


def prepare(graph: Graph) -> Graph:
    for run in (fold_constants, remove_dead, absorb_input_transpose, decompose, rows_as_images,
                transposed_as_convolution, fold_batchnorm, dense_as_convolution,
                recognise_activations, absorb_pads, absorb_input_cast, remove_dead):
        graph = run(graph)
    return graph


def fuse(graph: Graph) -> Graph:
    return remove_dead(fuse_convolutions(graph))
