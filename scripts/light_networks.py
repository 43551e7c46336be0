"""ONNX's nine light networks: as they are packaged, and with weights in which no two channels are alike.

Callers: onnx_conformance.py (so the CI's sample too) and bench_models.py. The packaged weights are one number
throughout, so that all outputs of a layer are one number as well: their output proves that the file is read as its
authors do, but exchanged channels, taps or classes leave it as it is. Hence the second form, which ONNX Runtime judges.
Invariant: the second form is the same at every call and on every machine (a fixed seed).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

Array = npt.NDArray[Any]
FOLDER = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
NAMES = tuple(sorted(path.stem for path in FOLDER.glob("*.onnx")))
SEED = 20
SMALL, NEAR_ONE = 0.1, (0.8, 1.2)


@dataclass(frozen=True)
class LightNetwork:
    """`model` with input `x` (1, 3, 224, 224) gives `output`, all as packaged. `drawn` is the same network with drawn
    weights and without its last Softmax, which would hide differences of small logits; `noise` is an input for it."""

    name: str
    model: onnx.ModelProto
    x: Array
    output: Array
    drawn: onnx.ModelProto
    noise: Array


def light_network(name: str) -> LightNetwork:
    """One of NAMES."""
    model = onnx.load(FOLDER / f"{name}.onnx")
    weights = {w.name for w in model.graph.initializer}
    entry = next(i for i in model.graph.input if i.name not in weights)
    shape = [d.dim_value for d in entry.type.tensor_type.shape.dim]
    x = (np.arange(np.prod(shape), dtype=np.float32) / np.float32(np.prod(shape))).reshape(shape)
    stored = onnx.TensorProto()
    stored.ParseFromString((FOLDER / f"{name}_output_0.pb").read_bytes())
    rng = np.random.default_rng(SEED)
    drawn = with_drawn_weights(model, rng)
    if drawn.graph.node[-1].op_type == "Softmax":
        drawn.graph.output[0].name = drawn.graph.node[-1].input[0]
        del drawn.graph.node[-1]
    noise = rng.standard_normal(shape, dtype=np.float32)
    return LightNetwork(name, model, x, numpy_helper.to_array(stored), drawn, noise)


def with_drawn_weights(model: onnx.ModelProto, rng: np.random.Generator) -> onnx.ModelProto:
    """The model with other parameters of the same shapes, all of them initializers.

    Weights are normal, of standard deviation sqrt(2 / fan-in) (He et al. 2015: what a Relu halves stays as large);
    biases and means normal, 0.1; scales and variances uniform, 0.8 to 1.2. ValueError: a parameter of another use.
    """
    made = onnx.ModelProto()
    made.CopyFrom(model)
    graph = made.graph
    stored = {w.name: numpy_helper.to_array(w) for w in graph.initializer}
    shapes = {n.output[0]: tuple(stored[n.input[0]]) for n in graph.node if n.op_type == "ConstantOfShape"}
    shapes |= {name: value.shape for name, value in stored.items() if value.dtype == np.float32}
    uses = {name: (node, index) for node in graph.node for index, name in enumerate(node.input)}
    values = {}
    for name, shape in shapes.items():
        if name in uses:
            node, index = uses[name]
            read = shape                                                   # by the operator that computes with it
            while node.op_type in ("Reshape", "Unsqueeze"):
                read = tuple(stored[node.input[1]]) if node.op_type == "Reshape" else read
                node, index = uses[node.output[0]]
            values[name] = _draw(read, node, index, rng).reshape(shape)
    nodes = [node for node in graph.node if node.output[0] not in values]
    kept = [w for w in graph.initializer if w.name not in values]
    del graph.node[:], graph.initializer[:]
    graph.node.extend(nodes)
    graph.initializer.extend([*kept, *(numpy_helper.from_array(value, name) for name, value in values.items())])
    return made


def _draw(shape: tuple[int, ...], node: onnx.NodeProto, index: int, rng: np.random.Generator) -> Array:
    use = (node.op_type, index)
    if use in (("Conv", 1), ("Gemm", 1)):
        over = shape[1:] if node.op_type == "Conv" or any(a.name == "transB" and a.i for a in node.attribute) \
            else shape[:1]
        return rng.standard_normal(shape, dtype=np.float32) * np.float32(np.sqrt(2 / np.prod(over)))
    if use in (("Conv", 2), ("Gemm", 2), ("BatchNormalization", 2), ("BatchNormalization", 3), ("Add", 1)):
        return rng.standard_normal(shape, dtype=np.float32) * np.float32(SMALL)
    if use in (("BatchNormalization", 1), ("BatchNormalization", 4), ("Mul", 1)):
        return rng.uniform(*NEAR_ONE, shape).astype(np.float32)
    raise ValueError(f"no parameters are drawn for input {index} of {node.op_type} '{node.name}'")
