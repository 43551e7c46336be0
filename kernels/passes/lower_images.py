"""Image nodes that move values without arithmetic, at any precision. Caller: `lower.py`.

The arithmetic of all others comes from the precision's `Numbers` (`lower_f32.py`, kernels/quant/quantise.py,
kernels/quant/half.py).
"""

from __future__ import annotations

from dataclasses import replace

from ..ir.graph import Node
from ..ir.grid_steps import Stuff
from ..ir.program import Tensor
from ..ir.steps import ActivationF32, Copy, MaxPool, Step, Upsample
from .lowering import Lowering
from .packing import runs

KEEPS_TYPE = frozenset({"MaxPool", "Resize", "Pad", "Concat", "Split", "ChannelGather", "ZeroStuff"})
ONE_ROUNDING = frozenset({"Convert", "AddF32", "MulF32", "AddF16", "MulF16"})


def is_exact(step: Step) -> bool:
    """Whether every executor makes the same bits of the same input: integers, and single roundings."""
    kind = type(step).__name__
    return kind.endswith("I8") or kind in ONE_ROUNDING or (isinstance(step, ActivationF32) and not step.activation)


def lower_image(node: Node, out: Lowering) -> None:
    """Adds the step of an image node; those outside KEEPS_TYPE come from the precision's Numbers."""
    x = out.tensors[node.inputs[0]]
    if node.op not in KEEPS_TYPE or "positions" in node.attrs:
        readers = out.graph.consumers.get(node.output, ())
        body_reads = any(reader.name in out.layouts.body for reader in readers)
        dtype = out.numbers.dtype(node, node.output, body_reads)
        y = out.declare(node.output, dtype)
        step = out.numbers.emit(node, out)
        exact = is_exact(step) and all(out.tensors[name].exact for name in step.reads())
        out.tensors[y.name] = replace(y, exact=exact)
        out.steps.append(step)
        return
    types = {out.tensors[name].dtype for name in node.inputs if name in out.tensors}
    if len(types) > 1:
        raise out.refuse(node, f"joins tensors of types {sorted(types)}", "build with --precision fp32")
    exact = all(out.tensors[name].exact for name in node.inputs if name in out.tensors)
    for name in node.outputs:
        out.declare(name, x.dtype, exact=exact)
    y = out.tensors[node.output]
    if node.op == "MaxPool":
        a = node.attrs
        out.steps.append(MaxPool(node.name, x.name, y.name, a["kernel_shape"], a["strides"], a["pads"],
                             a["dilations"]))
    elif node.op == "Resize":
        out.steps.append(Upsample(node.name, x.name, y.name, node.attrs["factors"]))
    elif node.op == "ZeroStuff":
        out.steps.append(Stuff(node.name, x.name, y.name, node.attrs["strides"], node.attrs["crop"]))
    elif node.op == "ChannelGather":
        moved = runs(x, y, 0, node.attrs["channels"])
        out.steps.append(Copy(node.name, x.name, y.name, moved))
    elif node.op == "Pad":
        _pad(node, x, y, out)
    elif node.op == "Concat":
        at = 0
        for index, name in enumerate(node.inputs):
            part = out.tensors[name]
            if (node.name, index) in out.map.copied:
                out.steps.append(Copy(f"{node.name}#{index}", name, y.name, runs(part, y, at)))
            at += part.shape[2]


def _pad(node: Node, x: Tensor, y: Tensor, out: Lowering) -> None:
    begin = out.graph.constants[node.inputs[1]].tolist()[:4]
    out.steps.append(Copy(node.name, x.name, y.name, runs(x, y, begin[1]), (begin[2], begin[3]),
                          clear=True))
