"""The table by layer of a build's report: op, shape, precision, SQNR, MACs, bytes. Caller: `build.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..cpu.executor import ProgramRunner
from ..ir.graph import Graph
from ..ir.program import Program
from ..passes.float_ends import FLOAT
from .pictures import Source

Array = npt.NDArray[Any]


def signal_to_noise(floats: ProgramRunner, integers: ProgramRunner, float_source: Source, integer_source: Source,
                    pictures: Sequence[Path]) -> dict[str, float]:
    """SQNR in dB of every integer tensor, and of every float tensor behind them, against the FP32 program's."""
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
                got = integers.logical(name, 0).astype(np.float64) * integers.program.tensors[name].scale
                signal[name] = signal.get(name, 0.0) + float((want.astype(np.float64) ** 2).sum())
                noise[name] = noise.get(name, 0.0) + float(((got - want) ** 2).sum())
    return {name: 10 * float(np.log10(max(signal[name], 1e-30) / max(noise[name], 1e-30))) for name in signal}


def layer_table(program: Program, constants: Mapping[str, Array], graph: Graph,
                noise: Mapping[str, float]) -> list[dict[str, Any]]:
    """One row a step; bytes are weights plus what the step reads and writes, one frame."""
    nodes = {node.name: node for node in graph.nodes}
    rows = []
    for step in program.steps:
        names = [*step.reads(), *step.writes()]
        output = program.tensors[step.writes()[0]]
        held = sum(int(constants[v].nbytes) for key in ("weight", "bias", "multiplier", "table", "constant")
                   if (v := getattr(step, key, "")) and isinstance(v, str))
        moved = sum(int(np.prod(program.tensors[n].shape)) * np.dtype(program.tensors[n].dtype).itemsize for n in names)
        node = nodes.get(step.name)
        macs = 0
        if node is not None and node.op == "Conv":
            macs = int(np.prod(graph.constants[node.inputs[1]].shape)) * output.shape[0] * output.shape[1]
        sqnr = noise.get(output.name)
        rows.append({"name": step.name, "step": type(step).__name__, "shape": list(output.shape),
                     "precision": output.dtype, "exact": output.exact,
                     "sqnr_db": None if sqnr is None else round(sqnr, 2), "macs": macs, "bytes": held + moved})
    return rows
