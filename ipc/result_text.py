"""One result as one line for a person. Used by `orind publish` and `orind listen`."""

from __future__ import annotations

from .wire import Result

OBJECTS_MAX = 4


def result_line(result: Result) -> str:
    """camera, what names the frame, outcome with its reason, the first findings, latency."""
    name = f"trigger {result.trigger}" if result.trigger is not None else f"seq {result.seq}"
    words = [f"{result.camera or '?'} {name}: {result.outcome}"]
    if result.repeated:
        words.append("(repeated)")
    if result.reason:
        words.append(f"({result.reason})")
    if not result.rows_kept:
        words.append("(its rows came with the first answer only)")
    if result.objects:
        shown = [_finding(found) for found in result.objects[:OBJECTS_MAX]]
        rest = len(result.objects) - len(shown)
        words.append(", ".join(shown) + (f" and {rest} more" if rest else ""))
    elif result.classes:
        words.append(", ".join(_finding(found) for found in result.classes[:OBJECTS_MAX]))
    elif result.tensor is not None:
        words.append(f"float32 {list(result.tensor.shape)}")
    elif result.outcome == "ok" and result.rows_kept:
        words.append("nothing found")
    total = result.latency_ms.get("total")
    if total is not None:
        words.append(f"[{total:.1f} ms]")
    return " ".join(words)


def _finding(found: dict[str, object]) -> str:
    score, box = found.get("score"), found.get("box")
    text = str(found.get("label", "?"))
    if isinstance(score, int | float):
        text += f" {score:.2f}"
    if isinstance(box, list) and all(isinstance(edge, int | float) for edge in box):
        text += " at " + ",".join(f"{edge:.0f}" for edge in box)
    return text
