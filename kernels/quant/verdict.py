"""The accuracy gate's verdict on the held-back pictures: what a build prints, and when it fails. Caller: `build.py`."""

from __future__ import annotations

from typing import Any

from .gate import SCORE

LIMIT_KL = 0.03
LEAST_ANCHORS = 50
WARN_BELOW, NO_GATE_BELOW = 64, 16
FINER = {"int8": "--precision mixed", "mixed": "--precision fp16", "fp16": "--precision fp32"}


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
    if figures.get("anchors", LEAST_ANCHORS) < LEAST_ANCHORS:
        figures["error"] = (f"not enough objects: {figures['anchors']} anchors above score {SCORE}, {LEAST_ANCHORS} "
                            "are needed")
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
    if "error" in figures:
        text = f"{figures['error']}: give more pictures, with objects on them"
    else:
        finer = "" if precision == "fp16" else " or fp32"
        text = (f"{precision} is {figures['excess']:.2f} times over the limits of the accuracy gate: build with "
                f"{FINER[precision]}{finer}, or calibrate on more pictures")
    if figures["is_gate"] and not accept_loss:
        raise AccuracyError(f"{text}; --accept-loss builds the plan as it is", figures)
    figures["loss_accepted"] = accept_loss
    warnings.append(text)


def gate_lines(figures: dict[str, Any]) -> list[str]:
    """The figures as lines for a person: every number that CONTRACT.md asks to be printed."""
    if not figures:
        return []
    name = "accuracy gate" if figures["is_gate"] else "accuracy (not a gate)"
    counted = f", {figures['anchors']} anchors" if "anchors" in figures else ""
    lines = [f"{name}: n = {figures['pictures']} held-back pictures{counted}"]
    if "kl_mean" in figures:
        lines.append(f"  KL mean {figures['kl_mean']:.5f} (limit {figures['limit_kl']:g}), "
                     f"P99 {figures['kl_p99']:.5f} nats")
    if "iou_mean" in figures:
        lines.append(f"  IoU of boxes, mean {figures['iou_mean']:.4f} (at least {figures['least_iou']:g})")
    if "sqnr_db" in figures:
        lines.append(f"  SQNR {figures['sqnr_db']:.2f} dB (at least {figures['least_sqnr_db']:g})")
    if "agreement" in figures:
        lines.append(f"  agreement {figures['agreement']:.4f} of pictures")
    if "error" in figures:
        lines.append(f"  no verdict: {figures['error']}")
    elif figures["is_gate"]:
        lines.append("  met" if figures["met"] else "  NOT met")
    return lines
