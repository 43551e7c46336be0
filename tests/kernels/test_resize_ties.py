"""Nearest Resize where a coordinate lies between two pixels, and sizes out of scales, as ONNX Runtime has them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from compiled import imported, onnxruntime_outputs
from onnx import helper, numpy_helper

from orind.kernels.ir.reference import run_graph

ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
MODES = ("half_pixel", "pytorch_half_pixel", "half_pixel_symmetric", "asymmetric", "align_corners")
PAIRS = ((28, 1), (14, 1), (30, 1), (28, 2), (7, 2), (7, 4), (15, 2), (30, 9), (30, 5), (100, 15), (6, 2), (3, 1),
         (2, 3), (9, 3), (6, 9), (1, 4))


def resized(size: int, out: int, mode: str, rounding: str, by: str) -> onnx.ModelProto:
    sizes = by == "sizes"
    value = np.array([1, 1, out, 1]) if sizes else np.array([1, 1, out / size, 1], dtype=np.float32)
    node = helper.make_node("Resize", ["x", "", "", "v"] if sizes else ["x", "", "v"], ["y"], mode="nearest",
                            coordinate_transformation_mode=mode, nearest_mode=rounding)
    ends = [helper.make_tensor_value_info(name, 1, shape) for name, shape in (("x", [1, 1, size, 1]), ("y", None))]
    graph = helper.make_graph([node], "g", ends[:1], ends[1:], [numpy_helper.from_array(value, "v")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("mode", MODES)
def test_ties(mode: str, rounding: str) -> None:
    for size, out in PAIRS:
        for by in ("sizes", "scales") if mode != "align_corners" else ("sizes",):
            model = resized(size, out, mode, rounding, by)
            x = np.arange(size, dtype=np.float32).reshape(1, 1, size, 1)
            got = run_graph(imported(model), {"x": x})["y"]
            want = onnxruntime_outputs(model, x)[0]
            assert got.reshape(-1).tolist() == want.reshape(-1).tolist(), (size, out, by)


@pytest.mark.parametrize(("size", "pixel"), [(28, 14), (14, 7), (30, 15)])
def test_a_tie_that_float32_misses_rounds_up(size: int, pixel: int) -> None:
    x = np.arange(size, dtype=np.float32).reshape(1, 1, size, 1)
    graph = imported(resized(size, 1, "half_pixel", "round_prefer_ceil", "sizes"))
    assert run_graph(graph, {"x": x})["y"].item() == pixel


def test_a_size_out_of_a_scale_is_rounded_as_float32() -> None:
    """5/3 as float32 is above 5/3, 7/3 below: both times 3 are whole in float32."""
    for size, out in ((3, 5), (3, 7), (3, 14), (33, 28)):
        assert imported(resized(size, out, "half_pixel", "floor", "scales")).shape("y") == (1, 1, out, 1)
