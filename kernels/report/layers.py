"""One record a step of the program, gathered from program, report and prediction: what every part of the page shows.

Caller: `page.py`, and `daemon/inspect_command.py` for the terminal's table. A figure that a build did not make is None.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..ir.program import Program
from ..plan.layout import PlanError
from .markup import clean

TYPES = {"int8": "INT8", "float16": "FP16", "float32": "FP32", "uint8": "bytes"}


def precision_of(report: Mapping[str, Any]) -> tuple[str, str]:
    """(precision of the layers, what mixed precision had to choose where that is not seen by it or "")."""
    precision = str(report["precision"])
    if precision != "mixed" or report.get("mixed", {}).get("layers"):
        return precision, ""
    judged = "no layer needed FP16" if report.get("gate") else "no pictures to choose layers for FP16 by"
    return "int8", f"mixed: {judged}"


@dataclass(frozen=True, slots=True)
class Layer:
    """`number` counts from 0 in running order. `precision` is the type that the layer computes in, `output` that of
    what it makes. `shape` (H, W, C) or flat, one frame. `kl_share` in 0..1 and `cost` in parts of the gate's limits:
    when this layer alone is int8. `kept`: why mixed precision keeps it in float16, or "".
    `us` and its band `low_us`, `high_us` are predicted; `bound` is the model's word for what limits it."""

    number: int
    name: str
    short: str
    op: str
    shape: str
    precision: str
    output: str
    exact: bool
    sqnr_db: float | None
    kl_share: float | None
    cost: float | None
    kept: str
    macs: int
    nbytes: int
    us: float | None
    low_us: float | None
    high_us: float | None
    bound: str


def _computes(step: str, output: str) -> str:
    """The type of a step's arithmetic: its name ends in it, or it only moves values."""
    return next((kind for end, kind in (("I8", "int8"), ("F16", "float16"), ("F32", "float32")) if step.endswith(end)),
                output)


def predicted_for(program: Program, predicted: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The first prediction of this program's batch size: its layers are the ones shown."""
    return next((table for table in predicted if table["batch"] == program.batch), None)


def shortened(names: Sequence[str]) -> list[str]:
    """Names without the path that all of those with a path begin with, and without a leading slash."""
    paths = [name.split("/") for name in names if "/" in name.strip("/")]
    common = 0
    if len(paths) > 1:
        least = min(len(p) for p in paths) - 1
        common = next((i for i in range(least) if len({p[i] for p in paths}) > 1), least)
    short = []
    for name in names:
        parts = name.split("/")
        kept = "/".join(parts[common:]) if common and len(parts) > common and "/" in name.strip("/") else name
        path = name[:len(name) - len(kept)]                  # layers made of several have their names, with + between
        short.append(kept.replace(f"+{path}", " + ").lstrip("/") if path else kept.lstrip("/") or name)
    return short


def records_of(program: Program, report: Mapping[str, Any], predicted: Mapping[str, Any] | None) -> list[Layer]:
    """In running order. Rows of report and prediction belong to steps by their place; a report of another length than
    the program raises PlanError."""
    rows = report["layers"]
    if len(rows) != len(program.steps):
        raise PlanError(f"its report is of {len(rows)} layers, its program has {len(program.steps)}: make it with "
                        "orind build")
    times: Sequence[Mapping[str, Any]] = predicted["layers"] if predicted else []
    kept = {row["name"]: row["why"] for row in report.get("mixed", {}).get("layers", ())}
    short = shortened([clean(row["name"]) for row in rows])
    found = []
    for i, row in enumerate(rows):
        time = times[i] if i < len(times) else {}
        found.append(Layer(
            i, row["name"], short[i], row.get("op", row["step"]), "x".join(map(str, row["shape"])),
            _computes(row["step"], row["precision"]), row["precision"],
            row.get("exact", False), row["sqnr_db"], row.get("kl_share"), row.get("cost"), kept.get(row["name"], ""),
            row["macs"], row["bytes"], time.get("us"), time.get("low_us"), time.get("high_us"), time.get("bound", "")))
    return found
