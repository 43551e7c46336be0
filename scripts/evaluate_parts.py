#!/usr/bin/env python3
"""Mean average precision at IoU 0.5, and the measurement of the shipped part detector on parts it has never seen.

Called by hand after training (then needs onnxruntime, extra `test`); the functions, pure NumPy, are loaded by path from
tests and benchmarks. Invariant: each truth is found at most once, and equal scores keep their order, so that the same
detections always give the same figure.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Detections = NDArray[np.floating]
IOU_FOUND = 0.5
FIRST_SEED = 1_000_000  # far above any training seed
SCORE_FLOOR = 0.01  # low: average precision wants the whole curve
CANDIDATES = 300  # at most, by score, before suppression: no part has more than 4 defects
IOU_SUPPRESS = 0.5
WORKING_SCORE, WORKING_IOU = 0.4, 0.4  # as in configs/models/part-inspect.yaml


@dataclass(frozen=True)
class Count:
    """What detections at one threshold are worth: how many are right, how many wrong, how many truths are missed, and
    in how many pictures everything is right."""

    right: int
    wrong: int
    missed: int
    faultless: int


def average_precision50(detections: Sequence[Detections], truths: Sequence[Detections]) -> dict[int, float]:
    """Average precision at IoU 0.5 of each class that occurs among the truths.

    One entry a picture in both: detections (n, 6) x1, y1, x2, y2, score, class; truths (m, 5) class, x1, y1, x2, y2.
    Matching as COCO does it: by falling score, each detection takes the free truth of its class and picture with the
    highest IoU, if that is 0.5 or more; precision is made non-increasing and integrated over every recall step (area
    under the curve, no sampling at 11 or 101 points). ValueError: different numbers of pictures, or other shapes.
    """
    found, wanted = _checked(detections, truths)
    classes = sorted({int(row[0]) for rows in wanted for row in rows})
    return {kind: _class_precision(kind, found, wanted) for kind in classes}


def mean_average_precision50(detections: Sequence[Detections], truths: Sequence[Detections]) -> float:
    """The mean of `average_precision50` over the classes. ValueError if no picture has a truth."""
    by_class = average_precision50(detections, truths)
    if not by_class:
        raise ValueError("no truth in any picture: there is nothing to find, so no precision")
    return sum(by_class.values()) / len(by_class)


def count_right(detections: Sequence[Detections], truths: Sequence[Detections]) -> Count:
    """Counts all given detections, whatever their score; shapes, matching and errors as in `average_precision50`."""
    right = wrong = missed = faultless = 0
    for rows, targets in zip(*_checked(detections, truths), strict=True):
        rows = rows[np.argsort(-rows[:, 4], kind="stable")]
        kinds = np.union1d(rows[:, 5], targets[:, 0])
        hits = sum(sum(_hits(rows[rows[:, 5] == kind], targets[targets[:, 0] == kind, 1:])) for kind in kinds)
        right, wrong, missed = right + hits, wrong + len(rows) - hits, missed + len(targets) - hits
        faultless += hits == len(rows) == len(targets)
    return Count(right, wrong, missed, faultless)


def intersection_over_union(box: Array, boxes: Array) -> Array:
    """IoU of one box (4,) with boxes (n, 4), corners x1, y1, x2, y2; 0 where both are empty."""
    sides = np.minimum(box[2:], boxes[:, 2:]) - np.maximum(box[:2], boxes[:, :2])
    inner = np.clip(sides, 0.0, None).prod(axis=1)
    union = (box[2:] - box[:2]).prod() + (boxes[:, 2:] - boxes[:, :2]).prod(axis=1) - inner
    ratio: Array = np.divide(inner, union, out=np.zeros_like(inner), where=union > 0)
    return ratio


def decode_and_suppress(output: Detections, score_floor: float, iou_limit: float) -> Array:
    """The detector's output (4 + classes, anchors): cx, cy, w, h, probabilities -> rows x1, y1, x2, y2, score, class.

    Every class of an anchor at or above `score_floor` is a candidate; of two candidates of one class that overlap by
    more than `iou_limit` the one with the higher score stays. Only the CANDIDATES best take part. Rows come by falling
    score.
    """
    values = np.asarray(output, np.float64)
    classes, anchors = np.nonzero(values[4:] >= score_floor)
    centre, half = values[:2, anchors].T, values[2:4, anchors].T / 2
    scores = values[4 + classes, anchors]
    rows: Array = np.column_stack((centre - half, centre + half, scores, classes.astype(np.float64)))
    rows = rows[np.argsort(-rows[:, 4], kind="stable")][:CANDIDATES]
    kept = []
    while len(rows):
        best, rows = rows[0], rows[1:]
        kept.append(best)
        overlaps = intersection_over_union(best[:4], rows[:, :4]) > iou_limit
        rows = rows[~(overlaps & (rows[:, 5] == best[5]))]
    return np.array(kept, np.float64).reshape(-1, 6)


def _checked(detections: Sequence[Detections], truths: Sequence[Detections]) -> tuple[list[Array], list[Array]]:
    if len(detections) != len(truths):
        raise ValueError(f"{len(detections)} pictures with detections, but {len(truths)} with truths")
    return [_rows(rows, 6, "detections") for rows in detections], [_rows(rows, 5, "truths") for rows in truths]


def _rows(rows: Detections, width: int, name: str) -> Array:
    values = np.asarray(rows, np.float64)
    if values.ndim != 2 or values.shape[1] != width:
        raise ValueError(f"{name} must be (n, {width}), not {values.shape}")
    return values


def _class_precision(kind: int, found: Sequence[Array], wanted: Sequence[Array]) -> float:
    """Area under the precision-recall curve of one class that has at least one truth."""
    scores: list[float] = []
    hits: list[bool] = []
    truths = 0
    for rows, targets in zip(found, wanted, strict=True):
        boxes = targets[targets[:, 0] == kind, 1:]
        mine = rows[rows[:, 5] == kind]
        mine = mine[np.argsort(-mine[:, 4], kind="stable")]
        truths += len(boxes)
        scores.extend(mine[:, 4].tolist())
        hits.extend(_hits(mine, boxes))
    order = np.argsort(-np.array(scores, np.float64), kind="stable")
    right = np.cumsum(np.array(hits, bool)[order])
    precision = right / np.arange(1, len(order) + 1)
    envelope = np.maximum.accumulate(precision[::-1])[::-1]
    steps = np.diff(right, prepend=0)
    return float((envelope * steps).sum() / truths)


def _hits(rows: Array, boxes: Array) -> list[bool]:
    """For one picture and class, rows by falling score: whether each takes a truth that was still free."""
    free = np.ones(len(boxes), bool)
    hits = []
    for row in rows:
        overlaps = np.where(free, intersection_over_union(row[:4], boxes), -1.0)
        hit = len(boxes) > 0 and bool(overlaps.max() >= IOU_FOUND)
        if hit:
            free[int(overlaps.argmax())] = False
        hits.append(hit)
    return hits


def outputs_and_truths(model: Path, count: int, first_seed: int) -> tuple[list[Detections], list[Detections]]:
    """What an ONNX part detector says of `count` parts, (4 + classes, anchors) each, and what is there."""
    import make_parts
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    outputs, wanted = [], []
    for seed in range(first_seed, first_seed + count):
        pixels, objects = make_parts.sample(seed)
        image = pixels.transpose(2, 0, 1)[None].astype(np.float32) / np.float32(255)
        outputs.append(session.run(None, {name: image})[0][0])
        wanted.append(objects)
    return outputs, wanted


def plan_outputs_and_truths(plan: Path, count: int, first_seed: int) -> tuple[list[Detections], list[Detections]]:
    """As `outputs_and_truths`, from a plan, by the executor and the preprocessing that serve."""
    import make_parts

    from orind.kernels.cpu.executor import CpuExecutor
    from orind.kernels.picture import Picture
    from orind.kernels.plan.file import PlanFile
    from orind.kernels.pre.preprocess import Preprocessor, input_table
    from orind.kernels.spec import ModelSpec

    outputs: list[Detections] = []
    truths: list[Detections] = []
    with PlanFile.open_path(plan) as file, CpuExecutor(file, 1) as executor:
        spec = ModelSpec.from_json(file.metadata["spec"])
        entry = executor.program.tensors[executor.program.inputs[0]]
        assert spec.input is not None
        prepare = Preprocessor(spec.input, entry.shape, input_table(spec.input, entry.dtype, entry.scale))
        for seed in range(first_seed, first_seed + count):
            pixels, truth = make_parts.sample(seed)
            height, width, _ = pixels.shape
            prepare.run(Picture("rgb8", width, height, 0, pixels.reshape(-1)), executor.input[0])
            [output] = executor.run()
            outputs.append(output.reshape(output.shape[-2:]).copy())
            truths.append(truth)
    return outputs, truths


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit code: 0, or 1 if the figure is below --at-least, 2 for a wrong argument."""
    parser = argparse.ArgumentParser(description="Measures mAP50 of a part detector on generated parts.")
    parser.add_argument("--model", type=Path, required=True, help="ONNX file (by ONNX Runtime) or plan (by orind)")
    parser.add_argument("--count", type=int, default=400, help="parts (default 400)")
    parser.add_argument("--seed", type=int, default=FIRST_SEED, help=f"seed of the first part (default {FIRST_SEED})")
    parser.add_argument("--at-least", type=float, default=0.0, help="exit 1 below this mAP50")
    options = parser.parse_args(arguments)
    if options.count < 1 or options.seed < 0:
        parser.error("--count must be at least 1 and --seed at least 0")
    if not options.model.is_file():
        parser.error(f"{options.model} is not a file")
    import make_parts

    measure = plan_outputs_and_truths if options.model.suffix == ".plan" else outputs_and_truths
    outputs, wanted = measure(options.model, options.count, options.seed)
    defects = sum(len(rows) for rows in wanted)
    if not defects:
        parser.error("these parts have no defects at all: raise --count")
    by_class = average_precision50([decode_and_suppress(x, SCORE_FLOOR, IOU_SUPPRESS) for x in outputs], wanted)
    for kind, value in by_class.items():
        print(f"{make_parts.LABELS[kind]:8} AP50 {value:.4f}")
    mean = sum(by_class.values()) / len(by_class)
    print(f"mAP50 {mean:.4f} on {options.count} parts with {defects} defects, seeds from {options.seed}")
    count = count_right([decode_and_suppress(x, WORKING_SCORE, WORKING_IOU) for x in outputs], wanted)
    print(
        f"at score {WORKING_SCORE}, IoU {WORKING_IOU}: {count.right} found, {count.missed} missed, "
        f"{count.wrong} false alarms; {count.faultless} parts without any fault"
    )
    return 0 if mean >= options.at_least else 1


if __name__ == "__main__":
    sys.exit(main())
