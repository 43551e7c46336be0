"""From calibration pictures to the scale of every tensor: the input's code, ranges, method by tensor.

Caller: `build.py`, with the graph that will be coded. Only calibration pictures are looked at here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..cpu.executor import ProgramRunner
from ..ir.errors import ModelError
from ..ir.graph import Graph
from ..passes.fuse_convolutions import SUM
from ..passes.islands import IMAGE
from ..passes.lower import lower
from ..passes.lower_f32 import FloatNumbers
from ..spec import InputSpec, ModelSpec
from .calibrate import BINS, METHODS, Histogram, collect
from .choice import choose_methods
from .gate import Task
from .pictures import CalibrationError, Source
from .scales import InputCode, Scales, assign_scales
from .sums import without_cut_tables

CALIBRATION_PICTURES = 256
CHOICE_PICTURES = 16
"""More change nothing that is measurable on the part detector: 48 gave the same KL and IoU in three times the time."""

Progress = Callable[[str], None]


def input_code(spec: ModelSpec, graph: Graph) -> InputCode:
    """Type and scale of a coded program's input. The range is that of the spec's arithmetic, so nothing is clipped.

    uint8 where no value is negative: for pixels in 0..1 the codes are then the pixels themselves. Tensors that come as
    they are stay as they are: float32 gets codes behind the input, with a calibrated scale.
    """
    if spec.input is None:
        dtype = graph.inputs[0].dtype
        if dtype not in ("uint8", "float32"):
            raise ModelError(f"{graph.file}: the model takes {dtype} tensors: export it with a float32 or uint8 input")
        return InputCode(dtype, 1.0)
    low, high = input_range(spec.input)
    if low >= 0:
        return InputCode("uint8", float(np.float32(high / 255)))
    return InputCode("int8", float(np.float32(max(-low, high) / 127)))


def input_range(spec: InputSpec) -> tuple[float, float]:
    """The least and the largest value that preprocessing can give."""
    ends = [(pixel - m) * s for pixel in (0, 255)
            for m, s in np.broadcast(np.array(spec.mean), np.array(spec.scale))]
    return float(min(ends)), float(max(ends))


def spread_out(pictures: Sequence[Path], count: int) -> list[Path]:
    """At most `count` of them, evenly over the sorted list."""
    return [pictures[i * len(pictures) // count] for i in range(count)] if len(pictures) > count else list(pictures)


def without_codes(fused: Graph) -> Scales:
    """For a body that is float16 throughout: no tensor has a scale, only a uint8 graph input stays what it is."""
    dtype = fused.inputs[0].dtype
    return Scales(fused, {info.name: 1.0 for info in fused.inputs}, InputCode(dtype, 1.0), {}, {})


def find_scales(prepared: Graph, fused: Graph, spec: ModelSpec, source: Source, pictures: Sequence[Path], method: str,
                task: Task, progress: Progress) -> tuple[Scales, dict[str, Any]]:
    """Scales for the graph `fused`, from ranges of the unfused graph `prepared`, and the report on the calibration.

    With the method "mse" each tensor may leave it for another (`choice.py`); other methods hold for all tensors.
    Raises CalibrationError, ModelError.
    """
    if method not in METHODS:
        raise CalibrationError(f"calibration method '{method}' is not one of {', '.join(METHODS)}")
    if not pictures:
        raise CalibrationError("no calibration pictures: INT8 needs some of the pictures that the model will see "
                               "(--calibrate DIR with .jpg, .png, .ppm or .npy)")
    code = input_code(spec, fused)
    used = spread_out(pictures, CALIBRATION_PICTURES)
    if len(used) < len(pictures):
        progress(f"{len(pictures)} calibration pictures given, {len(used)} of them, spread over all, are used")
    ranges = find_ranges(prepared, fused, source, used, progress)
    scales = assign_scales(fused, ranges, code, method)
    report: dict[str, Any] = {"method": method, "bins": BINS, "pictures": len(used), "pictures_given": len(pictures),
                              "input": {"dtype": code.dtype, "scale": code.scale}}
    if method == "mse":
        programs, constants = lower(fused, [1], FloatNumbers(fused))
        writers = [source.writer(path) for path in spread_out(used, CHOICE_PICTURES)]
        runner = ProgramRunner(programs[1], constants)
        scales, report["tensors_that_left"] = choose_methods(scales, method, task, runner, writers)
        progress(f"{len(report['tensors_that_left'])} tensors use another calibration method than {method}")
    return without_cut_tables(scales, ranges, method), report


def images_as_tensors(ranges: Mapping[str, Histogram]) -> dict[str, Histogram]:
    """The ranges of flat tensors, which were seen where layouts make images of them."""
    return {name.removesuffix(IMAGE): histogram for name, histogram in ranges.items() if name.endswith(IMAGE)}


def names_and_images(fused: Graph) -> set[str]:
    """What layouts may call the tensors of a fused graph, with those between tables and sums."""
    names = [name for node in fused.nodes for name in node.outputs]
    names += [node.attrs[SUM].table for node in fused.nodes if SUM in node.attrs]
    return {form for name in names for form in (name, name + IMAGE)}


def find_ranges(prepared: Graph, fused: Graph, source: Source, used: Sequence[Path],
                progress: Progress) -> dict[str, Histogram]:
    """Ranges of the tensors of `prepared` over pictures. Raises ModelError where one becomes NaN or infinite."""
    programs, constants = lower(prepared, [1], FloatNumbers(prepared))

    def told(done: int) -> None:
        if done % 16 == 0 or done == len(used):
            progress(f"calibrated on {done} of {len(used)} pictures")
    ranges = collect(ProgramRunner(programs[1], constants), (source.writer(path) for path in used), told,
                     names_and_images(fused))
    ranges |= images_as_tensors(ranges)
    broken = [name for name, h in ranges.items() if not h.finite]
    if broken:
        raise ModelError(f"{fused.file}: tensor '{broken[0]}' becomes NaN or infinite on the calibration pictures: "
                         "train or export the model again")
    return ranges
