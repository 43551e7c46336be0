"""`orind verify PLAN [--onnx MODEL] [--images DIR]`: whole, computing what it did, and how far from its ONNX model?"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from ..ipc.exit_codes import Exit
from ..kernels.ir.errors import ModelError, ProgramError
from ..kernels.plan.layout import PlanError
from ..kernels.pre.outputs import DecoderError
from ..kernels.quant.pictures import CalibrationError
from ..kernels.spec import SpecError
from ..kernels.verify import REFERENCES, verify
from . import named_inputs
from .missing_parts import is_own

EXTRAS = {"onnxruntime": "test"}
"""Of a library the extra of setup.cfg that brings it, where that is not `build`."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "example: orind verify part-inspect.plan --onnx part-inspect.onnx --images pictures/\n"
        "--onnx needs orind[build], --reference onnxruntime needs orind[test]\n"
        "exit code 0: every check passed; 1: one failed; 65: not a plan or not a model"
    )
    parser.add_argument("plan", metavar="PLAN", type=Path)
    parser.add_argument("--onnx", metavar="MODEL", type=Path, help="compare the outputs with this model's in FP32")
    parser.add_argument("--reference", choices=REFERENCES, default="import", help="who computes it (import: orind)")
    parser.add_argument("--images", metavar="DIR", type=Path, help="compare on these pictures, not on the golden input")
    parser.add_argument("--json", action="store_true", help="as one JSON object")


def run(options: argparse.Namespace) -> int:
    if options.images and not options.onnx:
        print("orind verify: --images needs --onnx MODEL, with which the plan is compared", file=sys.stderr)
        return Exit.USAGE
    if options.images and not options.images.is_dir():
        print(f"orind verify: {options.images}: {'is no' if options.images.exists() else 'no such'} folder",
              file=sys.stderr)
        return Exit.NO_INPUT
    if missing := named_inputs.refused("verify", [options.plan, *([options.onnx] if options.onnx else [])]):
        return missing
    try:
        report = verify(options.plan, options.onnx, options.reference, options.images)
    except (PlanError, ModelError, SpecError, ProgramError, CalibrationError, DecoderError) as error:
        named = str(options.plan) in str(error) or (options.onnx is not None and options.onnx.name in str(error))
        print(f"orind verify: {'' if named else f'{options.plan}: '}{error}", file=sys.stderr)
        return Exit.DATA
    except ImportError as error:
        if is_own(error):
            raise
        extra = EXTRAS.get(error.name or "", "build")
        print(f"orind verify: {error.name} is missing; install orind[{extra}]", file=sys.stderr)
        return Exit.UNAVAILABLE
    if options.json:
        print(json.dumps({"ok": report.ok, "checks": [asdict(check) for check in report.checks]}))
    else:
        words = {True: "ok", False: "FAILED", None: "-"}
        for check in report.checks:
            print(f"{words[check.ok]:7} {check.name:24} {check.text}")
    return Exit.DONE if report.ok else Exit.FAILED
