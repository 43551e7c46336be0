#!/usr/bin/env python3
"""What each measure is worth on the modelled boards (scripts/bench_energy): ms, W, mJ an inference, GB/s and accuracy.

Measures: INT8 instead of FP16, fusion, batches, GPU clocks; of our part detector and of BlazeFace. Accuracy is measured
here, by the CPU executor: mAP50 on parts that no training has seen, and the build's own gate against FP32 on held-back
pictures. Time is kernels/perf's and power the board's model: models' figures. Invariant:
nothing was measured on an Orin, and the first line says so.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import evaluate_parts
from built_plans import MODELS, cached_plan
from foreign_models import FETCHED
from model_pictures import COUNT, pictures_of

from orind.daemon.config_file import UnknownBoard, load_board
from orind.daemon.predicted_energy import clocks_hz, cost_of
from orind.daemon.terminal import table
from orind.kernels import build
from orind.kernels.ir.program import Program, programs_from_text
from orind.kernels.perf.device import Device
from orind.kernels.perf.model import costs
from orind.kernels.plan.file import PlanFile
from orind.kernels.plan.told import text_of
from orind.kernels.spec_yaml import read_spec
from orind.power.board import BoardFacts
from orind.power.cost import InferenceCost

DEFAULT_BOARDS = ("agx-orin:MAXN", "orin-nx:MAXN_SUPER", "orin-nano-super:MAXN_SUPER")
PICTURES = {"part-inspect": "parts", "blazeface-back": "faces"}
HEAD = ("measure", "kernels", "batch", "MHz", "ms", "W", "mJ/inference", "above idle", "GB/s", "energy", "accuracy")


@dataclass(frozen=True)
class Measure:
    """A way to build a model. `fused` False: activations, additions and the like are kernels of their own."""

    name: str
    precision: str
    fused: bool


MEASURES = (Measure("FP16, not fused", "fp16", False), Measure("FP16", "fp16", True),
            Measure("INT8, not fused", "int8", False), Measure("INT8", "int8", True),
            Measure("mixed INT8/FP16", "mixed", True))


@dataclass(frozen=True)
class Built:
    """A measure's programs by batch size, and what is known of its accuracy, in words."""

    measure: Measure
    programs: Mapping[int, Program]
    accuracy: str


@dataclass(frozen=True)
class Board:
    """A board in a mode. `file`: what its facts were read from."""

    spec: str
    device: Device
    file: Mapping[str, Any]
    facts: BoardFacts

    @classmethod
    def named(cls, spec: str) -> Board:
        """`spec` is BOARD:MODE. Raises UnknownBoard for one that there is none of."""
        file, facts, mode = load_board(spec)
        return cls(spec, Device.from_dict(file, mode), file, facts)

    def cost(self, program: Program, gpu_hz: int) -> InferenceCost:
        return cost_of(costs(program, self.device.at(gpu_hz=gpu_hz)), program.batch, self.file, self.facts)


def main(arguments: list[str] | None = None) -> int:
    options = _options(arguments)
    begun = time.monotonic()
    print("Time and power are models' figures (kernels/perf, power/cost.py): nothing was measured on an Orin.\n"
          "Accuracy was measured here. W: the board's under a load without a pause, as a stress load has it, at\n"
          "60 C. energy: mJ of an inference, the board as a whole, against the first row.", flush=True)
    boards = [Board.named(spec) for spec in options.boards]
    for model in options.models:
        built = [_built(model, measure, options) for measure in MEASURES]
        for board in boards:
            print("\n".join(["", f"{model} on {board.spec}, idle {board.facts.model.idle_mw / 1000:g} W",
                             *table(HEAD, rows_of(built, board))]), flush=True)
    print(f"\n{time.monotonic() - begun:.0f} s")
    return 0


def rows_of(built: Sequence[Built], board: Board) -> list[tuple[str, ...]]:
    """Each measure at the mode's clock and batch 1; then, of the last one, larger batches and lower clocks."""
    last, top = built[-1], board.device.gpu_hz
    ways = [(b, b.measure.name, b.programs[1], top) for b in built]
    ways += [(last, f"... batch {n}", last.programs[n], top) for n in sorted(last.programs) if n > 1]
    ways += [(last, f"... {hz / 1e6:g} MHz", last.programs[1], hz) for hz in reversed(clocks_hz(board.device)[:-1])]
    first = board.cost(built[0].programs[1], top)
    return [_row(b, name, program, hz, board.cost(program, hz), first) for b, name, program, hz in ways]


def _row(built: Built, name: str, program: Program, hz: int, cost: InferenceCost,
         first: InferenceCost) -> tuple[str, ...]:
    return (name, str(len(program.steps)), str(program.batch), f"{hz / 1e6:g}", f"{cost.ns / 1e6:.3f}",
            f"{cost.board_mw / 1000:.1f}", f"{cost.joules * 1e3:.2f}", f"{cost.joules_above_idle * 1e3:.2f}",
            f"{cost.gb_per_s:.1f}", f"{cost.joules / first.joules:.0%}", built.accuracy)


def _built(model: str, measure: Measure, options: argparse.Namespace) -> Built:
    path = plan_of(model, measure, options.pictures, options.fetched)
    with PlanFile.open_path(path) as plan:
        programs = programs_from_text(text_of(plan, "program"))
        gate = json.loads(text_of(plan, "report"))["gate"]
    said = [] if model != "part-inspect" else [f"mAP50 {mean_precision(path, options.parts):.4f}"]
    return Built(measure, programs, ", ".join([*said, in_words(gate)]))


def in_words(gate: Mapping[str, Any]) -> str:
    """What the gate of the build says of a detector against FP32."""
    if not gate:
        return "not judged"
    verdict = "" if gate["met"] else ", misses the gate"
    return f"KL {gate['kl_p99']:.4f}, IoU {gate['iou_mean']:.3f}{verdict}"


def mean_precision(plan: Path, parts: int) -> float:
    outputs, truths = evaluate_parts.plan_outputs_and_truths(plan, parts, evaluate_parts.FIRST_SEED)
    found = [evaluate_parts.decode_and_suppress(o, evaluate_parts.SCORE_FLOOR, evaluate_parts.IOU_SUPPRESS)
             for o in outputs]
    return float(evaluate_parts.mean_average_precision50(found, truths))


def plan_of(model: str, measure: Measure, pictures: int, fetched: Path) -> Path:
    """Built once, calibrated and judged on its own kind of pictures. One that misses the gate is built all the same."""
    onnx_path, spec_path = MODELS / f"{model}.onnx", MODELS / f"{model}.yaml"

    def make(out: Path) -> None:
        found = pictures_of(PICTURES[model], fetched, fetched / "pictures", pictures)
        with nullcontext() if measure.fused else unfused():
            build.build_plan(onnx_path, read_spec(spec_path), found, out, measure.precision, accept_loss=True)

    told = onnx_path.read_bytes() + spec_path.read_bytes() + f"{measure} {pictures}".encode()
    return cached_plan(f"energy-{model}-{measure.precision}{'' if measure.fused else '-unfused'}", told, make)


def unfused() -> AbstractContextManager[Any]:
    """A compiler without its last passes: what they fold into convolutions are kernels of their own."""
    leave: Callable[..., Any] = lambda graph, seen=None: graph  # noqa: E731
    return mock.patch.object(build, "fuse", leave)


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Prints W, ms, mJ and accuracy of each measure on modelled boards.",
        epilog="example: scripts/bench_energy --models part-inspect --boards agx-orin:MODE_30W",
    )
    parser.add_argument("--boards", nargs="+", default=DEFAULT_BOARDS, metavar="BOARD:MODE",
                        help=f"boards of configs/boards and their modes (default {' '.join(DEFAULT_BOARDS)})")
    parser.add_argument("--models", nargs="+", choices=PICTURES, default=list(PICTURES), metavar="MODEL",
                        help=f"default {' '.join(PICTURES)}; blazeface-back needs scripts/fetch_models")
    parser.add_argument("--parts", type=int, default=400, help="unseen parts for mAP50 (default 400)")
    parser.add_argument("--pictures", type=int, default=COUNT,
                        help=f"for calibration, a quarter of them held back (default {COUNT})")
    parser.add_argument("--fetched", type=Path, default=FETCHED, metavar="DIR",
                        help="where scripts/fetch_models put photographs (default build/models)")
    options = parser.parse_args(arguments)
    if options.parts < 1 or options.pictures < 4:
        parser.error("--parts must be at least 1, --pictures at least 4")
    for spec in options.boards:
        try:
            if ":" not in spec:
                raise ValueError(f"{spec}: name a mode as well, such as {DEFAULT_BOARDS[0]}")
            Board.named(spec)
        except (UnknownBoard, ValueError) as error:
            parser.error(str(error))
    return options


if __name__ == "__main__":
    sys.exit(main())
