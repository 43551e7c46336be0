"""The table of graph passes: nodes, predicted latency and peak memory before and after each.

Caller: `build.py`, which hands `PassTable` to the pipeline as its `seen`. Every figure of a row is of the graph lowered
in FP32 at batch 1 as it stands there: `peak_bytes` the arena, `us` the time model's sum over its steps on the named
board. The last row, `precision`, is the program that the plan holds at that batch, with its own types.
A BatchNormalization that no pass has taken yet costs what a depthwise 1x1 convolution does, which it equals. A graph
that cannot be lowered yet has no figures, and `why` says which node is in the way.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..ir.errors import ModelError
from ..ir.graph import Array, Graph, Node
from ..ir.program import Program
from ..passes.lower import lower
from ..passes.lower_f32 import FloatNumbers
from ..perf.device import Device
from ..perf.model import costs

IMPORT, PRECISION = "import", "precision"
DEFINITION = ("each graph lowered in FP32 at batch 1: peak is its arena, latency the time model's sum over its "
              "kernels; the last row is the plan's own program")


@dataclass
class PassTable:
    """Rows of the table; `device` is what latencies are predicted for (None: no latency)."""

    device: Device | None
    rows: list[dict[str, Any]] = field(default_factory=list)
    _last: Graph | None = None

    def seen(self, name: str, graph: Graph) -> None:
        """A row for the graph after the pass `name` (or IMPORT). A pass that changed nothing costs a comparison."""
        last, self._last = self._last, graph
        if self.rows and last is not None and _same(last, graph):
            self.rows.append({**self.rows[-1], "name": name, "changed": False})
            return
        row: dict[str, Any] = {"name": name, "changed": True, "nodes": len(graph.nodes), "kernels": None, "us": None,
                               "peak_bytes": None, "why": ""}
        try:
            stand_in = _without_batchnorm(graph)
            programs, _ = lower(stand_in, [1], FloatNumbers(stand_in))
        except ModelError as error:
            row["why"] = str(error)
        else:
            row |= self._figures(programs[1])
        self.rows.append(row)

    def lowered(self, program: Program, nodes: int, precision: str) -> None:
        """The last row: the plan's program of batch 1."""
        self.rows.append({"name": PRECISION, "changed": precision != "fp32", "nodes": nodes, "why": "",
                          **self._figures(program)})

    def report(self) -> dict[str, Any]:
        """What the plan's report holds under `passes`."""
        board = None if self.device is None else {"board": self.device.board, "mode": self.device.mode}
        return {"what": DEFINITION, "device": board, "rows": self.rows}

    def _figures(self, program: Program) -> dict[str, Any]:
        us = None if self.device is None else round(costs(program, self.device).ns / 1000, 2)
        return {"kernels": len(program.steps), "us": us, "peak_bytes": program.arena_bytes}


def _without_batchnorm(graph: Graph) -> Graph:
    """A depthwise 1x1 convolution in place of every BatchNormalization; its weights are of no account to costs."""
    nodes: list[Node] = []
    constants: dict[str, Array] = {}
    for node in graph.nodes:
        shape = graph.shape(node.inputs[0]) if node.op == "BatchNormalization" else ()
        if len(shape) == 4:
            weight, bias = f"{node.name}/weight+cost", f"{node.name}/bias+cost"
            constants |= {weight: np.ones((shape[1], 1, 1, 1), np.float32), bias: np.ones(shape[1], np.float32)}
            node = Node(node.name, "Conv", (node.inputs[0], weight, bias), node.outputs,
                        {"group": shape[1], "kernel_shape": (1, 1), "strides": (1, 1), "pads": (0, 0, 0, 0),
                         "dilations": (1, 1)})
        nodes.append(node)
    return graph.rebuilt(nodes, constants=constants)


def _same(a: Graph, b: Graph) -> bool:
    return a is b or (a.nodes == b.nodes and a.outputs == b.outputs and a.inputs == b.inputs)
