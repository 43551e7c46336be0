"""The order of the graph passes. Callers: `build.py`, `explain.py`, `verify_model.py`, tests.

`prepare` gives the graph in its own operators, still unfused (calibration needs every tensor); `fuse` what is lowered.
Both tell `seen` the name of each pass and the graph after it: the report's table of passes is made of that.
"""

from __future__ import annotations

from collections.abc import Callable

from ..ir.graph import Graph
from .absorb_input_cast import absorb_input_cast
from .absorb_input_transpose import absorb_input_transpose
from .absorb_pads import absorb_pads
from .decompose import decompose
from .dense_as_convolution import dense_as_convolution
from .focus_as_convolution import focus_as_convolution
from .fold_batchnorm import fold_batchnorm
from .fold_constants import fold_constants
from .fold_input_scales import fold_input_scales
from .fold_scales import fold_scales
from .fuse_convolutions import fuse_convolutions
from .recognise_activations import recognise_activations
from .recognise_gelu import recognise_gelu
from .recognise_layernorm import recognise_layernorm
from .recognise_shuffles import recognise_shuffles
from .remove_dead import remove_dead
from .rows_as_images import rows_as_images
from .tokens_as_images import tokens_as_images
from .transposed_as_convolution import transposed_as_convolution

PREPARE = (fold_constants, remove_dead, absorb_input_transpose, recognise_layernorm, recognise_gelu,
           recognise_activations, rows_as_images, decompose, transposed_as_convolution, fold_batchnorm,
           fold_input_scales, fold_scales, recognise_shuffles, focus_as_convolution, tokens_as_images,
           dense_as_convolution, absorb_pads, absorb_input_cast, remove_dead)
"""Patterns are recognised before they are taken apart; what becomes a convolution does so before pads are absorbed."""

FUSE = (fuse_convolutions, remove_dead)

Seen = Callable[[str, Graph], None]


def _unseen(name: str, graph: Graph) -> None:
    """Nobody wants to know."""


def prepare(graph: Graph, seen: Seen = _unseen) -> Graph:
    for run in PREPARE:
        graph = run(graph)
        seen(run.__name__, graph)
    return graph


def fuse(graph: Graph, seen: Seen = _unseen) -> Graph:
    for run in FUSE:
        graph = run(graph)
        seen(run.__name__, graph)
    return graph
