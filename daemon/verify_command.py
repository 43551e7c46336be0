"""`orind verify PLAN [--onnx MODEL]`: is the plan whole, does it still compute what it did, how far is it from ONNX?"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from ..ipc.exit_codes import Exit
from ..kernels.ir.errors import ModelError, ProgramError
from ..kernels.plan.layout import PlanError
from ..kernels.spec import SpecError
from ..kernels.verify import REFERENCES, verify


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "example: orind verify part-inspect.plan --onnx part-inspect.onnx --reference onnxruntime\n"
        "exit code 0: every check passed; 1: one failed; 65: not a plan or not a model"
    )
    parser.add_argument("plan", metavar="PLAN", type=Path)
    parser.add_argument("--onnx", metavar="MODEL", type=Path, help="compare the outputs with this model's in FP32")
    parser.add_argument("--reference", choices=REFERENCES, default="import", help="who computes it (import: orind)")
    parser.add_argument("--json", action="store_true", help="as one JSON object")


def run(options: argparse.Namespace) -> int:
    for path in (options.plan, *([options.onnx] if options.onnx else [])):
        if not path.is_file():
            print(f"orind verify: {path}: no such file", file=sys.stderr)
            return Exit.NO_INPUT
    try:
        report = verify(options.plan, options.onnx, options.reference)
    except KeyError as error:
        print(f"orind verify: {options.plan}: it holds no {error.args[0]}: make it with orind build", file=sys.stderr)
        return Exit.DATA
    except (PlanError, ModelError, SpecError, ProgramError) as error:
        print(f"orind verify: {error}", file=sys.stderr)
        return Exit.DATA
    except ImportError as error:
        print(f"orind verify: {error.name} is missing; install orind[build] or orind[test]", file=sys.stderr)
        return Exit.UNAVAILABLE
    if options.json:
        print(json.dumps({"ok": report.ok, "checks": [asdict(check) for check in report.checks]}))
    else:
        words = {True: "ok", False: "FAILED", None: "-"}
        for check in report.checks:
            print(f"{words[check.ok]:7} {check.name:24} {check.text}")
    return Exit.DONE if report.ok else Exit.FAILED
