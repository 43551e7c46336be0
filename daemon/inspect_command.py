"""`orind inspect PLAN [--json] [--board BOARD[:MODE]]`: what is in a plan, layer by layer, what its build measured, and
what the time model predicts for a board."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from ..ipc.exit_codes import Exit
from ..kernels.ir.errors import ProgramError
from ..kernels.ir.program import programs_from_text
from ..kernels.model import interface_of
from ..kernels.perf.device import DeviceError
from ..kernels.plan.file import PlanFile
from ..kernels.plan.layout import PlanError
from ..kernels.pre.outputs import DecoderError
from ..kernels.spec import ModelSpec, SpecError
from . import prediction


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "example: orind inspect part-inspect.plan --board agx-orin:MODE_30W\n"
        "exit code 2: no such board or mode; 65: not a plan, or damaged; 66: no such file"
    )
    parser.add_argument("plan", metavar="PLAN", type=Path)
    parser.add_argument("--json", action="store_true", help="everything as one JSON object")
    parser.add_argument("--board", metavar="BOARD[:MODE]", help=f"predict times on {prediction.HELP}")


def run(options: argparse.Namespace) -> int:
    if not options.plan.is_file():
        print(f"orind inspect: {options.plan}: no such file", file=sys.stderr)
        return Exit.NO_INPUT
    try:
        with PlanFile.open_path(options.plan) as plan:
            plan.verify()
            table = describe(plan)
            if options.board is not None:
                table["predicted"] = prediction.predictions(programs_from_text(plan.metadata["program"]), options.board)
    except KeyError as error:
        print(f"orind inspect: {options.plan}: it holds no {error.args[0]}: make it with orind build", file=sys.stderr)
        return Exit.DATA
    except DeviceError as error:
        print(f"orind inspect: --board {options.board}: {error}", file=sys.stderr)
        return Exit.USAGE
    except (PlanError, SpecError, ProgramError, DecoderError) as error:
        print(f"orind inspect: {error}", file=sys.stderr)
        return Exit.DATA
    print(json.dumps(table) if options.json else "\n".join(lines(options.plan, table)))
    return Exit.DONE


def describe(plan: PlanFile) -> dict[str, Any]:
    """Spec, interface, report and provenance of a verified plan."""
    spec = ModelSpec.from_json(plan.metadata["spec"])
    interface = interface_of(plan, spec)
    return {
        "sha256": plan.sha256,
        "bytes": plan.size,
        "spec": json.loads(plan.metadata["spec"]),
        "input": {"dtype": interface.input_dtype, "shape": interface.input_shape},
        "report": json.loads(plan.metadata["report"]),
        "provenance": json.loads(plan.metadata["provenance"]),
    }


def lines(path: Path, table: dict[str, Any]) -> list[str]:
    """The plan for a person's terminal."""
    spec, report = table["spec"], table["report"]
    shape = "x".join(map(str, table["input"]["shape"]))
    text = [
        f"{path}: {spec['name']}, {spec['task']}, {report['precision']}, {table['bytes']} bytes",
        f"sha256   {table['sha256']}",
        f"input    {table['input']['dtype']} {shape}, batch sizes {spec['batch']}",
        f"labels   {', '.join(spec['labels'][:12])}{' ...' if len(spec['labels']) > 12 else ''}",
        f"graph    {report['nodes_before']} nodes before, {report['steps']} kernels after",
        *(f"{key:8} {_flat(report[key])}" for key in ("calibration", "gate") if report.get(key)),
        f"made by  {_flat(table['provenance'])}",
        "",
        f"{'layer':44} {'step':14} {'shape':>16} {'type':>8} {'SQNR':>6} {'MMAC':>8} {'KB':>8}",
    ]
    for row in report["layers"]:
        sqnr = "" if row["sqnr_db"] is None else f"{row['sqnr_db']:.1f}"
        shape = "x".join(map(str, row["shape"]))
        text.append(
            f"{row['name'][-44:]:44} {row['step']:14} {shape:>16} {row['precision']:>8} {sqnr:>6} "
            f"{row['macs'] / 1e6:8.2f} {row['bytes'] / 1024:8.1f}"
        )
    macs = sum(row["macs"] for row in report["layers"])
    moved = sum(row["bytes"] for row in report["layers"])
    text.append(f"{'together':44} {'':14} {'':>16} {'':>8} {'':>6} {macs / 1e6:8.2f} {moved / 1024:8.1f}")
    predicted = table.get("predicted") or report.get("predicted")
    return [*text, *prediction.lines(predicted)] if predicted else text


def _flat(values: dict[str, Any]) -> str:
    return ", ".join(f"{key} {_word(value)}" for key, value in values.items() if value is not None)


def _word(value: Any) -> str:
    if isinstance(value, dict):
        return _flat(value)
    if isinstance(value, list):
        return f"({len(value)})"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
