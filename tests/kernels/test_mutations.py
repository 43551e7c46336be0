"""Mutated ONNX: refused with a message, or built and equal to ONNX Runtime; never a traceback, never a hang.

Bounded and seeded: attributes, sizes, wiring, operators, types and bytes of small networks of every form.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from compiled import fill, fp32, imported, onnxruntime_outputs
from forms import recent_yolo, segmenter, vit, yolox
from google.protobuf.message import DecodeError, EncodeError
from models import Net, detector_onnx, random_net
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper

from orind.kernels.ir.errors import ModelError
from orind.kernels.ir.reference import run_graph

RUNTIME = (onnxruntime.capi.onnxruntime_pybind11_state.Fail,
           onnxruntime.capi.onnxruntime_pybind11_state.InvalidArgument,
           onnxruntime.capi.onnxruntime_pybind11_state.InvalidGraph,
           onnxruntime.capi.onnxruntime_pybind11_state.InvalidProtobuf,
           onnxruntime.capi.onnxruntime_pybind11_state.NotImplemented,
           onnxruntime.capi.onnxruntime_pybind11_state.RuntimeException)
NOISE = 8
"""Where rounding moves a result of others by d, in another order it may move ours by so many times that."""
INTEGERS = (-1, 0, 1, 2, 3, 5, 7, 8, 64, 1 << 31, -(1 << 62), 1 << 62)
OPS = ("Relu", "Add", "Mul", "MatMul", "Concat", "Softmax", "Transpose", "Reshape", "Conv", "MaxPool", "Gather",
       "Resize", "ReduceMean", "LayerNormalization", "Slice", "Expand", "Pad", "Range", "Cast", "ConvTranspose", "Tile",
       "Where")
BASES: tuple[Callable[[], onnx.ModelProto], ...] = (
    lambda: detector_onnx(32, (4, 8, 8, 8)), lambda: yolox(True, 32), lambda: recent_yolo(32, 4),
    lambda: vit(True, 16, 8, 2), lambda: vit(False, 16, 8, 2), lambda: segmenter(16),
    lambda: random_net(3), lambda: random_net(11))


def mutate(model: onnx.ModelProto, rng: random.Random) -> None:
    node = rng.choice(model.graph.node)
    kind = rng.randrange(10)
    if kind == 0 and node.attribute:
        attribute = rng.choice(node.attribute)
        if attribute.ints:
            attribute.ints[rng.randrange(len(attribute.ints))] = rng.choice(INTEGERS)
        elif attribute.type == onnx.AttributeProto.INT:
            attribute.i = rng.choice(INTEGERS)
        elif attribute.type == onnx.AttributeProto.STRING:
            attribute.s = rng.choice((b"", b"linear", b"half_pixel", b"\xff", b"SAME_UPPER"))
    elif kind == 1 and node.attribute:
        del node.attribute[rng.randrange(len(node.attribute))]
    elif kind == 2:
        node.op_type = rng.choice(OPS)
    elif kind == 3 and node.input:
        others = [o for n in model.graph.node for o in n.output] + [w.name for w in model.graph.initializer] + [""]
        node.input[rng.randrange(len(node.input))] = rng.choice(others)
    elif kind == 4 and model.graph.initializer:
        weight = rng.choice(model.graph.initializer)
        value = numpy_helper.to_array(weight).copy()
        if value.size:
            large = 1e9 if value.dtype.kind == "f" else 100
            value.reshape(-1)[rng.randrange(value.size)] = rng.choice((0, 1, -1, 3, large))
        weight.CopyFrom(numpy_helper.from_array(value, weight.name))
    elif kind == 5 and model.graph.initializer:
        weight = rng.choice(model.graph.initializer)
        value = numpy_helper.to_array(weight)
        shorter = value[:0] if value.ndim else value
        changed = rng.choice((value.reshape(-1), value[None], value.astype(np.int64), shorter))
        weight.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(changed), weight.name))
    elif kind == 6:
        dims = model.graph.input[0].type.tensor_type.shape.dim
        dims[rng.randrange(len(dims))].dim_value = rng.choice((0, 1, 2, 5, 17, 33))
    elif kind == 7:
        model.opset_import[0].version = rng.choice((0, 1, 7, 9, 11, 13, 18, 21, 99))
    elif kind == 8:
        model.graph.node.remove(node)
    else:
        model.graph.input[0].type.tensor_type.elem_type = rng.choice((TensorProto.UINT8, TensorProto.FLOAT16, 77))


def judge(model: onnx.ModelProto) -> str:
    """"refused", "equal", or "alone" where ONNX Runtime does not take the model."""
    try:
        runner, _ = fp32(model)
    except ModelError as error:
        assert str(error).startswith("test.onnx") and len(str(error)) > 20
        return "refused"
    fill(runner, 1)
    x = runner.input[0].copy()
    got = [o.copy() for o in runner.run()]
    if x.ndim == 3 and runner.program.input_layout != "nhwc":
        x = x.transpose(2, 0, 1)
    try:
        wanted = onnxruntime_outputs(model, np.ascontiguousarray(x)[None])
    except RUNTIME:
        return "alone"
    for index, (a, b) in enumerate(zip(got, wanted, strict=True)):
        a = a.reshape(b.shape)
        finite = np.isfinite(b)
        if not finite.all() or np.abs(b).max(initial=0) > 1e6:      # overflow: rounding decides
            continue
        limit = 2e-3 * max(1e-3, float(np.abs(b).max(initial=0)))
        if np.abs(a - b).max(initial=0) > limit:
            frame = np.ascontiguousarray(x)[None]
            exact, plain = (plainly(model, frame, kind)[index] for kind in (np.float64, np.float32))
            limit += NOISE * max(float(np.abs(other - exact).max()) for other in (b, plain))
            assert np.abs(a - exact).max() <= limit
    return "equal"


def plainly(model: onnx.ModelProto, x: NDArray[Any], kind: type[np.floating[Any]]) -> list[NDArray[Any]]:
    """The outputs by plain NumPy in float64 or float32: between the two lies what rounding does to this model."""
    graph = imported(model)
    constants = {name: value.astype(kind) for name, value in graph.constants.items() if value.dtype == np.float32}
    whole = replace(graph, constants={**graph.constants, **constants})
    with np.errstate(all="ignore"):
        values = run_graph(whole, {graph.inputs[0].name: x.astype(kind)})
    return [values[name] for name in graph.outputs]


@pytest.mark.parametrize("base", range(len(BASES)))
def test_mutated_models(base: int) -> None:
    original = BASES[base]()
    verdicts = []
    for seed in range(25):
        rng = random.Random(1000 * base + seed)
        model = onnx.ModelProto()
        model.CopyFrom(original)
        for _ in range(rng.choice((1, 1, 2))):
            mutate(model, rng)
        try:
            model.SerializeToString()
        except EncodeError:
            continue
        verdicts.append(judge(model))
    assert verdicts.count("refused") > 3 and verdicts.count("equal") > 1


def test_flipped_bits_in_models_of_many_forms() -> None:
    for base, make in enumerate(BASES):
        data = make().SerializeToString()
        for seed in range(20):
            rng = random.Random(77 * base + seed)
            damaged = bytearray(data)
            damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
            try:
                model = onnx.load_model_from_string(bytes(damaged))
            except DecodeError:
                continue
            try:
                fp32(model)
            except ModelError as error:
                assert len(str(error)) > 20


def test_a_convolution_of_several_images_in_the_flat_part() -> None:
    """Found by mutation: a Reshape in front of it makes images of one; only the first was computed."""
    net = Net((1, 3, 8, 8))
    x = net.op("Reshape", net.conv(net.input, 8), net.constant(np.array([2, 4, 8, 8])))
    net.channels[x] = 4
    assert judge(net.model([(net.op("Softmax", net.conv(x, 6, 3, group=2), axis=1), (2, 6, 8, 8))])) == "equal"


def test_a_result_that_is_rounding_alone_is_judged_as_such() -> None:
    """Found by mutation: LayerNormalization with the exponent 1 divides by a mean of deviations, which is rounding."""
    model = vit(True, 16, 8, 2)
    exponents = {node.input[1] for node in model.graph.node if node.op_type == "Pow"}
    for weight in model.graph.initializer:
        if weight.name in exponents:
            weight.CopyFrom(numpy_helper.from_array(np.ones(1, dtype=np.float32), weight.name))
    assert judge(model) == "equal"
    runner, _ = fp32(model)
    fill(runner, 1)
    x = np.ascontiguousarray(runner.input[0].transpose(2, 0, 1))[None]
    got, want, exact = runner.run()[0], onnxruntime_outputs(model, x)[0], plainly(model, x, np.float64)[0]
    size = np.abs(exact).max()
    assert np.abs(want - exact).max() > 1e-4 * size and np.abs(got.reshape(want.shape) - exact).max() > 1e-4 * size
