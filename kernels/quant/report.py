"""The table by layer of a build's report: op, shape, precision, SQNR, share of the loss, MACs, bytes. For `build.py`.

A layer's `cost` is what it costs when it alone is int8, on the ranking pictures, in parts of the gate's limits
(`rank_layers`). Its `kl_share` is its part of the sum of all layers' costs above 0. Costs do not add up to the gate's
own figure: the roundings of several layers meet in every tensor behind them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..cpu.executor import ProgramRunner
from ..ir.graph import Graph, Node
from ..ir.macs import multiply_accumulates
from ..ir.program import Program
from ..passes.float_ends import FLOAT
from .pictures import Source

Array = npt.NDArray[Any]


def signal_to_noise(floats: ProgramRunner, integers: ProgramRunner, float_source: Source, integer_source: Source,
                    pictures: Sequence[Path], units: Mapping[str, Array]) -> dict[str, float]:
    """SQNR in dB of every integer tensor, and of every float tensor behind them, against the FP32 program's.

    `units`: scales by channel of the tensors that have no one scale (`parts.py`).
    """
    signal: dict[str, float] = {}
    noise: dict[str, float] = {}
    for path in pictures:
        float_source.writer(path)(floats.input[0])
        integer_source.writer(path)(integers.input[0])
        wanted = {name: floats.logical(name, 0) for step in floats.walk() for name in step.writes()}
        for step in integers.walk():
            for name in step.writes():
                want = wanted.get(name.removesuffix(FLOAT))
                if want is None:
                    continue
                tensor = integers.program.tensors[name]
                unit = units.get(name, tensor.scale) if tensor.dtype == "int8" else tensor.scale
                got = integers.logical(name, 0).astype(np.float64) * unit
                signal[name] = signal.get(name, 0.0) + float((want.astype(np.float64) ** 2).sum())
                noise[name] = noise.get(name, 0.0) + float(((got - want) ** 2).sum())
    return {name: 10 * float(np.log10(max(signal[name], 1e-30) / max(noise[name], 1e-30))) for name in signal}


def layer_table(program: Program, constants: Mapping[str, Array], graph: Graph, noise: Mapping[str, float],
                costs: Mapping[str, float]) -> list[dict[str, Any]]:
    """One row a step; bytes are constants plus what the step reads and writes, one frame, without pads.

    `noise`: SQNR in dB by tensor; `costs` by node name. What was not measured is None.
    """
    nodes = {node.name: node for node in graph.nodes}
    macs = multiply_accumulates(graph)
    total = sum(max(cost, 0.0) for cost in costs.values())
    rows = []
    for step in program.steps:
        names = [*step.reads(), *step.writes()]
        output = program.tensors[step.writes()[0]]
        texts = (getattr(step, f.name) for f in fields(step) if f.name != "name")
        held = sum(int(constants[v].nbytes) for v in texts if isinstance(v, str) and v not in names and v in constants)
        moved = sum(int(np.prod(program.tensors[n].shape)) * np.dtype(program.tensors[n].dtype).itemsize for n in names)
        node, sqnr, cost = nodes.get(step.name), noise.get(output.name), costs.get(step.name)
        op = type(step).__name__ if node is None else operator_of(node, output.shape[-1])
        rows.append({"name": step.name, "step": type(step).__name__, "op": op, "shape": list(output.shape),
                     "precision": output.dtype, "exact": output.exact,
                     "sqnr_db": None if sqnr is None else round(sqnr, 2),
                     "cost": None if cost is None else float(f"{cost:.4g}"),
                     "kl_share": None if cost is None else round(max(cost, 0.0) / total, 5) if total else 0.0,
                     "macs": macs.get(step.name, 0), "bytes": held + moved})
    return rows


def ranking_facts(costs: Mapping[str, float], precision: str, pictures: int) -> dict[str, Any]:
    """Whether the layers' shares of the loss were measured, on how many pictures, and if not, why not."""
    if costs and any(cost > 0 for cost in costs.values()):
        return {"measured": True, "pictures": pictures, "why": ""}
    if precision in ("fp16", "fp32"):
        why = "no layer is int8"
    elif costs:
        why = "no single int8 layer costs anything on the ranking pictures"
    else:
        why = "no layer had to be ranked; orind build --kl-share measures it"
    return {"measured": False, "pictures": pictures if costs else 0, "why": why}


def operator_of(node: Node, channels: int) -> str:
    """A node's operator for a person, with its window and what is fused into it: "Conv 3x3 /2 + SiLU + Add".

    "dw" is depthwise: as many groups as `channels` of the output.
    """
    attrs = node.attrs
    text = node.op
    if kernel := attrs.get("kernel_shape"):
        text += " " + "x".join(map(str, kernel))
        if max(attrs.get("strides", (1,))) > 1:
            text += f" /{max(attrs['strides'])}"
    if attrs.get("group", 1) > 1:
        text += " dw" if attrs["group"] == channels else f" g{attrs['group']}"
    if attrs.get("activation"):
        text += f" + {attrs['activation']}"
    if node.op == "Conv" and len(node.inputs) > 3:
        text += " + Add"
    if "bounds" in attrs:
        text += " + Relu" if tuple(attrs["bounds"]) == (0.0, None) else " + Clip"
    return text
