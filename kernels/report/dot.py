"""`orind inspect PLAN --dot`: the program as Graphviz text. Caller: `daemon/inspect_command.py`."""

from __future__ import annotations

from collections.abc import Sequence

from .dataflow import INPUT, Flow
from .layers import Layer
from .markup import clean

FILL = {"int8": "#d8efea", "float16": "#fce8c8", "float32": "#e7ebf0", "uint8": "#dce8fb"}


def quoted(text: str) -> str:
    """A DOT string: nothing in it ends it, and a backslash stands for itself."""
    return '"' + clean(text).replace("\\", "\\\\").replace('"', '\\"') + '"'


def dot(name: str, flow: Flow, layers: Sequence[Layer]) -> str:
    """One node a step, an edge for each tensor that one step hands to another."""
    count = len(layers)
    lines = [f"digraph {quoted(name)} {{", '  node [shape=box, style="rounded,filled", fontname="Helvetica"];',
             '  input [shape=oval, fillcolor=white];', '  output [shape=oval, fillcolor=white];']
    for layer in layers:
        label = f"{layer.number}: {layer.op}\n{layer.precision} -> {layer.shape} {layer.output}"
        if layer.sqnr_db is not None:
            label += f", {layer.sqnr_db:.1f} dB"
        lines.append(f"  s{layer.number} [label={quoted(label)}, tooltip={quoted(layer.name)}, "
                     f'fillcolor="{FILL.get(layer.precision, "white")}"];'.replace("\n", "\\n"))
    for edge in flow.edges:
        start = "input" if edge.writer == INPUT else f"s{edge.writer}"
        end = "output" if edge.reader == count else f"s{edge.reader}"
        lines.append(f"  {start} -> {end} [tooltip={quoted(edge.tensor)}];")
    return "\n".join([*lines, "}"])
