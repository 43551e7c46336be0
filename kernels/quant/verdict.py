"""The accuracy gate's verdict on the held-back pictures: what a build prints, and when it fails. Caller: `build.py`."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import Any

from .gate import MAP_SCORE, SCORE

LIMIT_KL = 0.03
LEAST_OBJECTS = 50
COUNTED = {"anchors": SCORE, "pixels": MAP_SCORE}
"""What is counted, by its key in the figures, and the FP32 score from which on it counts."""
WARN_BELOW, NO_GATE_BELOW = 64, 16
FINER = {"int8": "--precision mixed", "mixed": "--precision fp16", "fp16": "--precision fp32"}


def against_limits(used: float) -> str:
    """`used`: what is used up of the limits, 1.0 being all of them. To stand behind `is` or a colon."""
    return f"within the limits, {100 * (1 - used):.3g} % left" if used <= 1 else f"{used:.3g} times the limits"


def agreement(figures: dict[str, Any]) -> str:
    """How often a person would see the same; a figure that no limit holds."""
    if "mask_score" in figures:
        return f"IoU of the masks at score {figures['mask_score']:g}: {figures['agreement']:.4f} (not gated)"
    same, pictures = round(figures["agreement"] * figures["pictures"]), figures["pictures"]
    return f"pictures whose answer equals FP32's: {same} of {pictures} (not gated)"


class AccuracyError(Exception):
    """A gate that is not met: the text says what would meet it, `figures` what was measured."""

    def __init__(self, text: str, figures: dict[str, Any]) -> None:
        super().__init__(text)
        self.figures = figures


def judge_gate(figures: dict[str, Any], task: str, pictures: int, warnings: list[str]) -> dict[str, Any]:
    """The figures of the held-back pictures with `is_gate` and `met`: None where nothing can be said (`error` why).

    Adds to `warnings` what a person must know about the number of pictures.
    """
    figures = {"task": task, "pictures": pictures, "is_gate": pictures >= NO_GATE_BELOW, **figures}
    for what, score in COUNTED.items():
        if figures.get(what, LEAST_OBJECTS) < LEAST_OBJECTS:
            figures["error"] = (f"not enough objects: {figures[what]} {what} above score {score}, {LEAST_OBJECTS} are "
                                "needed")
    if not figures["is_gate"]:
        warnings.append(f"only {pictures} pictures are held back: the figures are not a gate ({NO_GATE_BELOW} are "
                        f"needed, {WARN_BELOW} are better)")
    elif pictures < WARN_BELOW:
        warnings.append(f"only {pictures} pictures are held back: the gate is weak below {WARN_BELOW}")
    figures["met"] = None if "error" in figures else figures["excess"] <= 1
    return figures


def enforce(figures: dict[str, Any], precision: str, accept_loss: bool, warnings: list[str]) -> None:
    """Raises AccuracyError where a gate is not met; with `accept_loss` figures and warnings say that it is not."""
    if not figures or figures["met"]:
        return
    if "overflow" in figures:
        where = f" (overflow: {figures['overflow']})" if figures["overflow"] else ""
        text = f"{precision} gives no finite answer{where}: build with --precision fp32"
    elif "error" in figures:
        text = f"{figures['error']}: give more pictures, with objects on them"
    else:
        finer = "" if precision == "fp16" else " or fp32"
        text = (f"{precision} is at {figures['excess']:.2f} times the limits of the accuracy gate: build with "
                f"{FINER[precision]}{finer}, or calibrate on more pictures")
    if figures["is_gate"] and not accept_loss:
        raise AccuracyError(f"{text}; --accept-loss builds the plan as it is", figures)
    figures["loss_accepted"] = accept_loss
    warnings.append(text)


def gate_of(report: Mapping[str, Any]) -> dict[str, Any]:
    """The gate's figures; how often a choice of FP16 layers was tried on its pictures only where any was chosen."""
    gate: dict[str, Any] = copy(report.get("gate", {}))  # of its own type: one that names what a plan lacks
    if not report.get("mixed", {}).get("layers"):
        gate.pop("looks", None)
    return gate


def gate_lines(figures: dict[str, Any]) -> list[str]:
    """The figures as lines for a person: every number that CONTRACT.md asks to be printed."""
    if not figures:
        return []
    name = "accuracy gate" if figures["is_gate"] else "accuracy (not a gate)"
    counted = "".join(f", {figures[what]} {what}" for what in COUNTED if what in figures)
    lines = [f"{name}: n = {figures['pictures']} held-back pictures{counted}"]
    if "kl_mean" in figures:
        lines.append(f"  KL mean {figures['kl_mean']:.5f} (limit {figures['limit_kl']:g}), "
                     f"P99 {figures['kl_p99']:.5f} nats")
    if "iou_mean" in figures:
        lines.append(f"  IoU of boxes, mean {figures['iou_mean']:.4f} (at least {figures['least_iou']:g})")
    if "sqnr_db" in figures:
        lines.append(f"  SQNR {figures['sqnr_db']:.2f} dB (at least {figures['least_sqnr_db']:g})")
    if "others_sqnr_db" in figures:
        lines.append(f"  SQNR of the other outputs {figures['others_sqnr_db']:.2f} dB (not gated)")
    if "agreement" in figures:
        lines.append(f"  {agreement(figures)}")
    if figures.get("false_alarms"):
        what = "pixels" if "pixels" in figures else "anchors"
        share = f"; with them it is {against_limits(figures['strict'])}" if "strict" in figures else ""
        lines.append(f"  false alarms: {figures['false_alarms']} {what} that FP32 does not count (not gated){share}")
    if "looks" in figures:
        lines.append(f"  FP16 layers were chosen on calibration pictures; look {figures['looks']} at these pictures")
    if figures.get("overflow"):
        lines.append(f"  overflow: {figures['overflow']}")
    if "error" in figures:
        lines.append(f"  no verdict: {figures['error']}")
    elif figures["is_gate"]:
        lines.append("  met" if figures["met"] else "  NOT met")
    return lines
