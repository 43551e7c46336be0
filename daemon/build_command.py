"""`orind build MODEL.onnx --spec SPEC.yaml --calibrate DIR -o PLAN`: a plan from an ONNX model."""

from __future__ import annotations

import argparse
import math
import re
import reprlib
import sys
from pathlib import Path

from ..kernels.ir.errors import ModelError, ProgramError
from ..kernels.perf.device import DeviceError
from ..kernels.plan.layout import PlanError
from ..kernels.plan.replacement import NotWritten
from ..kernels.pre.decoder import DecoderError
from ..kernels.spec import SpecError
from . import named_inputs, output_file, prediction
from .missing_parts import is_own
from .progress import Progress

_SIZE = re.compile("[0-9]{1,10}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "example: orind build part-inspect.onnx --spec part-inspect.yaml --calibrate images/ -o part-inspect.plan\n"
        "The spec may be left out for --precision fp32 without a decoder: the plan then takes and gives tensors."
    )
    parser.add_argument("model", metavar="MODEL.onnx", type=Path)
    parser.add_argument("--spec", metavar="SPEC.yaml", type=Path, help="what the model takes and what its outputs mean")
    parser.add_argument(
        "--calibrate", metavar="DIR", type=Path, nargs="+", default=[], help="pictures, or folders of them"
    )
    parser.add_argument("-o", "--output", metavar="PLAN", type=Path, help="the plan's file; an earlier one is replaced")
    parser.add_argument(
        "--input",
        metavar="NAME=1x3x480x640",
        type=_shape,
        action="append",
        default=[],
        help="shape of the model's input, where the file leaves it open or another is wanted",
    )
    parser.add_argument(
        "--explain", action="store_true", help="list all that keeps the model from being built; build nothing"
    )
    parser.add_argument(
        "--precision",
        choices=("mixed", "int8", "fp16", "fp32"),
        default="mixed",
        help="mixed (default): INT8, and FP16 for the layers that the accuracy gate asks it for",
    )
    parser.add_argument(
        "--calibration",
        choices=("mse", "minmax", "percentile", "entropy"),
        default="mse",
        help="how a tensor's range becomes its scale; with mse (default) a tensor may get another one where that costs "
        "less",
    )
    parser.add_argument("--max-kl", type=_positive, default=0.03, metavar="NATS", help="limit of the gate (0.03)")
    parser.add_argument(
        "--accept-loss", action="store_true", help="write the plan even if the accuracy gate is not met; it says so"
    )
    parser.add_argument(
        "--kl-share",
        action="store_true",
        help="measure each layer's share of the loss also where INT8 meets the gate (mixed does where it does not); "
        "needs --calibrate, not for fp16 and fp32",
    )
    parser.add_argument(
        "--board", metavar="BOARD[:MODE]", help=f"predicted times and a schedule in the report, for {prediction.HELP}"
    )


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number above 0, not {text}")
    return value


def _shape(text: str) -> tuple[str, tuple[int, ...]]:
    name, found, sizes = text.rpartition("=")
    parts = sizes.lower().split("x")
    if not found or not name or not all(_SIZE.fullmatch(part) and 0 < int(part) < 1 << 31 for part in parts):
        raise argparse.ArgumentTypeError(f"must be like images=1x3x480x640, not {reprlib.repr(text)}")
    return name, tuple(int(part) for part in parts)


def _with_file(error: Exception, options: argparse.Namespace) -> str:
    """The error, with the file in front where it names none: the spec's for what it says of the outputs."""
    blamed = options.spec if isinstance(error, DecoderError) and options.spec is not None else options.model
    names = [str(path) for path in (options.output, *options.calibrate)]
    names += [path.name for path in (options.model, options.spec) if path is not None]
    named = any(name in str(error) for name in names)
    return str(error) if named else f"{blamed}: {error}"


def _explain(options: argparse.Namespace) -> int:
    from ..kernels.explain import explain

    found = explain(options.model, dict(options.input))
    for problem in found.problems:
        print(problem)
    print(found.summary)
    return 65 if found.problems else 0


def run(options: argparse.Namespace) -> int:
    try:
        from ..kernels.build import build_plan
        from ..kernels.importer.onnx_model import external_files
        from ..kernels.quant.pictures import CalibrationError, find_pictures
        from ..kernels.quant.verdict import AccuracyError, gate_lines, gate_of
        from ..kernels.spec_yaml import read_spec
    except ImportError as error:
        if is_own(error):
            raise
        print(f"orind build: {error.name} is missing; install orind[build]", file=sys.stderr)
        return 69
    names = [name for name, _ in options.input]
    if twice := next((name for name in names if names.count(name) > 1), None):
        print(f"orind build: --input {twice}: its shape is given twice; give it once", file=sys.stderr)
        return 2
    files = [options.model, *([options.spec] if options.spec else [])]
    if missing := named_inputs.refused("build", files, options.calibrate):
        return missing
    if options.explain:
        return _explain(options)
    if options.output is None:
        print("orind build: -o PLAN is missing (or --explain, which builds nothing)", file=sys.stderr)
        return 2
    if options.kl_share and options.precision in ("fp16", "fp32"):
        print(f"orind build: --kl-share: with --precision {options.precision} no layer is INT8, so none has a share of "
              "the loss; leave one of them out", file=sys.stderr)
        return 2
    try:
        devices = prediction.devices(options.board) if options.board is not None else []
        passes_on = (devices or prediction.devices(prediction.DEFAULT))[0]
    except DeviceError as error:
        print(f"orind build: --board {options.board}: {error}", file=sys.stderr)
        return 2
    said = "orind build: -o"
    try:
        inputs = [*zip(("model", "spec"), files, strict=False),
                  *(("calibration picture", path) for path in find_pictures(options.calibrate))]
        unwritable = output_file.refused(said, options.output, inputs)
        if unwritable is None and options.output.exists():
            weights = [("model's file of weights", path) for path in external_files(options.model)]
            unwritable = output_file.refused(said, options.output, weights)
    except (CalibrationError, ModelError) as error:
        print(f"orind build: {error}", file=sys.stderr)
        return 65
    if unwritable:
        return unwritable
    with Progress() as progress:
        try:
            spec = read_spec(options.spec) if options.spec is not None else None
            result = build_plan(
                options.model,
                spec,
                options.calibrate,
                options.output,
                options.precision,
                progress.say,
                method=options.calibration,
                max_kl=options.max_kl,
                accept_loss=options.accept_loss,
                kl_share=options.kl_share,
                devices=devices,
                passes_on=passes_on,
                shapes=dict(options.input),
            )
        except AccuracyError as error:
            print("\n".join(gate_lines(error.figures)))
            print(f"orind build: {error}", file=sys.stderr)
            return 1
        except (ModelError, ProgramError, SpecError, PlanError, DecoderError, CalibrationError) as error:
            print(f"orind build: {_with_file(error, options)}", file=sys.stderr)
            return 65
        except NotWritten as error:
            return output_file.failed(said, options.output, error)
    for warning in result.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    for line in gate_lines(gate_of(result.report)):
        print(line)
    print(f"{result.path}  sha256 {result.sha256}")
    return 0
