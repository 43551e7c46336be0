"""ONNX models to bound programs for tests: FP32, and INT8 calibrated on random inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray

from orind.kernels.cpu.executor import ProgramRunner
from orind.kernels.importer.onnx_model import import_model
from orind.kernels.ir.graph import Graph
from orind.kernels.ir.program import Program
from orind.kernels.ir.validate import validate
from orind.kernels.passes.float_ends import float_ends
from orind.kernels.passes.lower import lower
from orind.kernels.passes.lower_f32 import FloatNumbers
from orind.kernels.passes.pipeline import fuse, prepare
from orind.kernels.quant.calibrate import collect
from orind.kernels.quant.coding import images_as_tensors, names_and_images
from orind.kernels.quant.half import mixed_numbers
from orind.kernels.quant.scales import InputCode, Scales, assign_scales
from orind.kernels.quant.sums import without_cut_tables

Array = NDArray[Any]


def imported(model: onnx.ModelProto) -> Graph:
    return import_model(model, Path("test.onnx"))


def fp32(model: onnx.ModelProto, batch: int = 1) -> tuple[ProgramRunner, dict[str, Array]]:
    graph = fuse(prepare(imported(model)))
    return bound(lower(graph, [batch], FloatNumbers(graph)), batch)


def bound(lowered: tuple[dict[int, Program], dict[str, Array]], batch: int = 1) -> tuple[ProgramRunner, dict[str,
                                                                                                         Array]]:
    """The program for `batch`, which every engine would load, and its constants."""
    programs, constants = lowered
    validate(programs[batch], constants)
    return ProgramRunner(programs[batch], constants), constants


def calibrated(model: onnx.ModelProto, code: InputCode | None = None, seed: int = 0, frames: int = 2) -> Scales:
    """Calibrated on random inputs that fill the range of the input code (default: int8 of -1..1)."""
    code = code or InputCode("int8", float(np.float32(1 / 127)))
    prepared = prepare(imported(model))
    fused = fuse(float_ends(prepared))
    programs, constants = lower(prepared, [1], FloatNumbers(prepared))
    rng = np.random.default_rng(seed)
    low = -127 if code.dtype == "int8" else 0
    values = [rng.integers(low, 128 if low else 256, programs[1].tensors[programs[1].inputs[0]].shape) * code.scale
              for _ in range(frames)]
    ranges = collect(ProgramRunner(programs[1], constants),
                     [lambda out, v=v: np.copyto(out, v, casting="unsafe") for v in values], lambda done: None,
                     names_and_images(fused))
    ranges |= images_as_tensors(ranges)
    return without_cut_tables(assign_scales(fused, ranges, code), ranges, "mse")


def int8(model: onnx.ModelProto, batch: int = 1, code: InputCode | None = None, seed: int = 0,
         frames: int = 2) -> tuple[ProgramRunner, dict[str, Array]]:
    """As `calibrated`, bound."""
    scales = calibrated(model, code, seed, frames)
    graph, numbers = mixed_numbers(scales, ())
    return bound(lower(graph, [batch], numbers), batch)


def fill(runner: ProgramRunner, seed: int = 0) -> None:
    """Random input codes over the whole range of the type (float: -1..1)."""
    rng = np.random.default_rng(seed)
    if runner.input.dtype == np.float32:
        runner.input[...] = rng.uniform(-1, 1, runner.input.shape)
    else:
        info = np.iinfo(runner.input.dtype)
        runner.input[...] = rng.integers(info.min, info.max + 1, runner.input.shape)


def onnxruntime_session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    """Graph optimisation off, one thread."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(model.SerializeToString(), options)


def onnxruntime_outputs(model: onnx.ModelProto, x: Array) -> list[Array]:
    """x in the ONNX file's layout."""
    session = onnxruntime_session(model)
    return list(session.run(None, {session.get_inputs()[0].name: x}))
