"""`orind inspect PLAN`: what is in a plan, layer by layer where that is asked for, what its build measured, what the
time model predicts for a board; in words, as JSON, as one HTML page or as Graphviz text."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..ipc.exit_codes import Exit
from ..kernels.described import described
from ..kernels.ir.errors import ProgramError
from ..kernels.ir.program import Program, programs_from_text
from ..kernels.perf.device import DeviceError
from ..kernels.plan.file import PlanFile
from ..kernels.plan.layout import PlanError
from ..kernels.plan.replacement import NotWritten, replacing
from ..kernels.plan.told import text_of
from ..kernels.pre.outputs import DecoderError
from ..kernels.spec import SpecError
from . import inspect_table, named_inputs, output_file, prediction

HTML = "orind inspect: --html"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "example: orind inspect part-inspect.plan --board agx-orin:MODE_30W --html part-inspect.html\n"
        "exit code 1: the page cannot be written; 2: no such board or mode; 65: not a plan, or damaged; "
        "66: no such file"
    )
    parser.add_argument("plan", metavar="PLAN", type=Path)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="everything as one JSON object")
    form.add_argument(
        "--html",
        metavar="FILE",
        type=Path,
        help=f"one self-contained page; predicts for {prediction.DEFAULT} if neither --board nor the build names one",
    )
    form.add_argument("--dot", action="store_true", help="the graph as Graphviz text")
    form.add_argument("--layers", action="store_true", help="also every graph pass and every layer")
    parser.add_argument("--board", metavar="BOARD[:MODE]", help=f"predict times on {prediction.HELP}")


def run(options: argparse.Namespace) -> int:
    if missing := named_inputs.refused("inspect", [options.plan]):
        return missing
    if options.html is not None and (unwritable := output_file.refused(HTML, options.html, [("plan", options.plan)])):
        return unwritable
    try:
        with PlanFile.open_path(options.plan) as plan:
            plan.verify()
            table = describe(plan)
            programs = programs_from_text(text_of(plan, "program"))
        if options.board is not None:
            table["predicted"] = prediction.predictions(programs, options.board)
            if not options.json and "passes" in table["report"]:
                told = table["report"]["passes"]
                table["report"] = {**table["report"], "passes": _passes_for(options.board, told, table["predicted"])}
        if options.html is not None:
            return _write_page(options, table, programs)
        if options.dot:
            text = _dot(table, programs)
        elif options.json:
            text = json.dumps(table)
        else:
            text = "\n".join(inspect_table.lines(options.plan, table, programs, options.layers))
    except DeviceError as error:
        print(f"orind inspect: --board {options.board}: {error}", file=sys.stderr)
        return Exit.USAGE
    except (PlanError, SpecError, ProgramError, DecoderError) as error:
        path = "" if str(options.plan) in str(error) else f"{options.plan}: "
        print(f"orind inspect: {path}{error}", file=sys.stderr)
        return Exit.DATA
    print(text)
    return Exit.DONE


def describe(plan: PlanFile) -> dict[str, Any]:
    """Spec, interface, report and provenance of a verified plan. Raises PlanError where one is missing, and later for
    what is missing in them."""
    found = described(plan)
    return {
        "sha256": plan.sha256,
        "bytes": plan.size,
        "spec": json.loads(found.spec.to_json()),
        "input": {"dtype": found.interface.input_dtype, "shape": found.interface.input_shape},
        "report": found.report,
        "provenance": found.provenance,
    }


def _passes_for(asked: str, told: dict[str, Any], predicted: list[dict[str, Any]]) -> dict[str, Any]:
    """The pass table without its times where these are another board's or mode's: the graphs are not in the plan."""
    board = told["device"]
    if board is None or (board["board"], board["mode"]) in {(each["board"], each["mode"]) for each in predicted}:
        return told
    made_for = f"{board['board']}:{board['mode']}"
    what = f"{told['what']}. Times by pass were predicted for {made_for}; rebuild with --board {asked} for its own"
    return {**told, "what": what, "device": None, "rows": [{**row, "us": None} for row in told["rows"]]}


def _write_page(options: argparse.Namespace, table: Mapping[str, Any], programs: Mapping[int, Program]) -> int:
    from ..kernels.report.page import page

    told = table["report"].get("predicted")  # the build's: times only
    own = table.get("predicted") or (prediction.predictions(programs, prediction.DEFAULT) if not told else [])
    text = page(table, programs[table["spec"]["batch"][0]], own or told, own)
    try:
        with replacing(options.html) as file:
            file.write(text.encode())
    except NotWritten as error:
        return output_file.failed(HTML, options.html, error)
    output_file.written(options.html, sys.stdout)
    return Exit.DONE


def _dot(table: Mapping[str, Any], programs: Mapping[int, Program]) -> str:
    from ..kernels.report.dataflow import Flow
    from ..kernels.report.dot import dot
    from ..kernels.report.layers import records_of

    program = programs[table["spec"]["batch"][0]]
    return dot(table["spec"]["name"], Flow(program), records_of(program, table["report"], None))
