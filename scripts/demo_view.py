"""What the demonstration shows: outcomes, detections against labels, gaps, power, annotated pictures."""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from orind.daemon.terminal import plot, table
from orind.ipc.answer import OUTCOMES, Result

LABELS = ("scratch", "pit", "stain", "chip")
NAMED_PARTS = 6
LEGEND = 24  # pixels below the sheet
GREEN, ORANGE = (40, 220, 90), (255, 150, 30)


@dataclass(frozen=True)
class Answered:
    """An answer and when it came (CLOCK_MONOTONIC, s)."""

    at_s: float
    result: Result


@dataclass(frozen=True)
class Judged:
    """A named frame: what must be found on it, what may be (a cat's face, a profile), how much was, what else."""

    name: str
    expected: int
    found: int
    tolerated: int
    extra: int
    text: str


def overlap(a: Sequence[float], b: Sequence[float]) -> float:
    """Intersection over union of two boxes x1, y1, x2, y2."""
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    if width <= 0 or height <= 0:
        return 0.0
    shared = width * height
    return shared / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - shared)


def first_ok(answers: list[Answered], index: int, count: int) -> Result | None:
    """The first `ok` answer to frame `index` of the `count` that a camera repeats."""
    return next(
        (a.result for a in answers if a.result.ok and a.result.seq is not None and a.result.seq % count == index), None
    )


def judge_parts(answers: list[Answered], parts: list[Any]) -> list[Judged]:
    """Each part against its labels: right class and IoU >= 0.5."""
    judged = []
    for index, (_, truth) in enumerate(parts):
        result = first_ok(answers, index, len(parts))
        if result is None:
            judged.append(Judged(f"part {index}", len(truth), 0, 0, 0, "no answer in time"))
            continue
        left = list(result.objects)
        found = 0
        for kind, *box in truth.tolist():
            match = next((o for o in left if o["label"] == LABELS[int(kind)] and overlap(o["box"], box) >= 0.5), None)
            if match is not None:
                left.remove(match)
                found += 1
        text = ", ".join(f"{o['label']} {o['score']:.2f}" for o in result.objects) or "no defect"
        judged.append(Judged(f"part {index}", len(truth), found, 0, len(left), text))
    return judged


def judge_faces(answers: list[Answered], photographs: list[Path], expected_path: Path) -> list[Judged]:
    """Each photograph against the faces that are on it (those marked `clear` must be found)."""
    expected = json.loads(expected_path.read_text())["frames"]
    judged = []
    for index, path in enumerate(photographs):
        about = expected[path.name]
        faces = [f for f in about["faces"] if f["clear"]]
        possible = [*about["may_find"], *(f for f in about["faces"] if not f["clear"])]
        result = first_ok(answers, index, len(photographs))
        if result is None:
            judged.append(Judged(path.name, len(faces), 0, 0, 0, "no answer in time"))
            continue
        found = sum(any(overlap(o["box"], f["box"]) >= 0.5 for o in result.objects) for f in faces)
        text = ", ".join(f"{o['label']} {o['score']:.2f}" for o in result.objects) or "no face"
        tolerated = sum(any(overlap(o["box"], f["box"]) >= 0.5 for o in result.objects) for f in possible)
        extra = len(result.objects) - found - tolerated
        judged.append(Judged(path.name, len(faces), found, tolerated, extra, text))
    return judged


def gap_ms(answers: list[Answered], at_s: float, period_ms: float) -> float:
    """Largest interval between answers within 1 s of an event, less the period at which they normally come."""
    times = [a.at_s for a in answers if at_s - 0.2 <= a.at_s <= at_s + 1.0]
    intervals = [b - a for a, b in pairwise(times) if b >= at_s]
    return max(intervals, default=float("nan")) * 1e3 - period_ms


def summary(
    cameras: list[tuple[str, Any]],
    status: dict[str, Any],
    killed_at: float,
    reload_at: float,
    reload_s: float,
    parts: list[Judged],
    faces: list[Judged],
) -> list[str]:
    """All tables of the run."""
    rows = []
    for name, camera in cameras:
        outcomes = Counter(a.result.outcome for a in camera.answers)
        rows.append([name, camera.sent, len(camera.answers), *(outcomes[o] for o in OUTCOMES)])
    lines = ["", *table(["camera", "sent", "answered", *OUTCOMES], rows), ""]
    named = [*faces, *parts[:NAMED_PARTS]]
    lines += table(
        ["frame", "must find", "found", "may find", "extra", "answer"],
        [[j.name, j.expected, j.found, j.tolerated, j.extra, j.text] for j in named],
    )
    total = [sum(getattr(j, k) for j in parts) for k in ("expected", "found", "extra")]
    lines += [f"all {len(parts)} parts: {total[1]} of {total[0]} defects found, false alarms: {total[2]}", ""]
    stages = [[stage, *(f"{v[p]:.2f}" for p in ("p50", "p95", "p99"))] for stage, v in status["latency_ms"].items()]
    lines += [*table(["latency by stage, ms", "P50", "P95", "P99"], stages), ""]
    line = dict(cameras)["line1"]
    period_ms = 1e3 * (line.answers[-1].at_s - line.answers[0].at_s) / (len(line.answers) - 1)
    failover = status["failover"]
    lines += table(
        ["event", "added gap between answers, ms", "detail"],
        [
            ["SIGKILL of the active engine", f"{gap_ms(line.answers, killed_at, period_ms):.1f}",
             f"{failover['frames']} frames in flight, all answered" if failover else "no failover"],
            ["reload", f"{gap_ms(line.answers, reload_at, period_ms):.1f}", f"done after {reload_s * 1e3:.0f} ms"],
        ],
    )
    frames = status["frames"]
    lines += [
        "",
        f"received {frames['received']} == outcomes {sum(frames[o] for o in OUTCOMES)} "
        f"+ in flight {frames['in_flight']}; state {status['state']}, generation {status['generation']}, "
        f"failovers {status['failovers']}",
        "",
    ]
    return lines


def power_plot(readings: list[dict[str, Any]]) -> list[str]:
    """Board power and temperature over the run."""
    if not readings:
        return ["no power readings"]
    budget = readings[-1]["budget_w"]
    board = [r.get("board_w") for r in readings]
    caps = [r["gpu_cap_hz"] / 1e6 for r in readings if r.get("gpu_cap_hz")]
    lines = plot(f"board power (simulated AGX Orin, budget {budget:g} W)", "W", board)
    lines += plot("junction temperature (simulated)", "C", [r.get("tj_c") for r in readings])
    if caps:
        lines.append(
            f"GPU clock cap between {min(caps):.0f} and {max(caps):.0f} MHz; last reason: {readings[-1].get('reason')}"
        )
    return lines


def annotate_parts(out: Path, answers: list[Answered], parts: list[Any]) -> None:
    """A sheet of the first parts: labels in orange, answers in green, as its last line says."""
    count, columns, side = 12, 4, 256
    sheet = Image.new("RGB", (columns * side, count // columns * side + LEGEND))
    legend = "orange: where a defect was painted    green: what orind answered, with its score"
    ImageDraw.Draw(sheet).text((8, count // columns * side + 6), legend, fill=(255, 255, 255))
    for index in range(count):
        pixels, truth = parts[index]
        picture = Image.fromarray(np.asarray(pixels))
        draw = ImageDraw.Draw(picture)
        for _, *box in truth.tolist():
            draw.rectangle([box[0] - 2, box[1] - 2, box[2] + 2, box[3] + 2], outline=ORANGE)
        result = first_ok(answers, index, len(parts))
        for found in result.objects if result is not None else []:
            _frame(draw, found, GREEN)
        sheet.paste(picture, (index % columns * side, index // columns * side))
    sheet.save(out / "parts.png")


def annotate_faces(out: Path, answers: list[Answered], photographs: list[Path]) -> None:
    """Each photograph with what was found on it."""
    for index, path in enumerate(photographs):
        picture = Image.open(io.BytesIO(path.read_bytes())).convert("RGB")
        draw = ImageDraw.Draw(picture)
        result = first_ok(answers, index, len(photographs))
        for found in result.objects if result is not None else []:
            _frame(draw, found, GREEN)
        picture.save(out / f"{path.stem}.png")


def _frame(draw: ImageDraw.ImageDraw, found: dict[str, Any], colour: tuple[int, int, int]) -> None:
    x1, y1, x2, y2 = found["box"]
    draw.rectangle([x1, y1, x2, y2], outline=colour, width=2)
    text = f"{found['label']} {found['score']:.2f}"
    width = draw.textlength(text)
    left, top = max(0, min(x1, draw.im.size[0] - width - 2)), y1 - 12 if y1 >= 12 else y2 + 1
    draw.rectangle([left, top, left + width + 2, top + 11], fill=(0, 0, 0))
    draw.text((left + 1, top), text, fill=colour)
