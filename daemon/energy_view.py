"""The `energy` section of the status for a person: `orind status`, `orind power`, the status page.

Invariant: what was not measured is said not to be, never shown as 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..power.energy import SHARES

CAMERAS_SHOWN = 8


def in_words(energy: Mapping[str, Any]) -> list[str]:
    """The board's energy and what it went into, and why nothing is measured at the moment."""
    whole = energy["board_joules"]
    text = []
    if whole is None:
        return [f"not measured: {energy['reason'] or 'the first reading is awaited'}"]
    parts = ", ".join(f"{name} {energy[f'{name}_joules'] / whole:.0%}" for name in SHARES) if whole else "nothing"
    unknown = f"; unknown for {energy['unknown_s']:.0f} s" if energy["unknown_s"] else ""
    text.append(f"{energy['board_watt_hours']:.3f} Wh in {energy['known_s']:.0f} s: {parts}{unknown}")
    if energy["unmeasured_frames"]:
        text.append(f"{energy['unmeasured_frames']} frames ran while power was unknown and are in no figure")
    if energy["reason"]:
        text.append(f"not measured now: {energy['reason']}")
    return text


def each(figures: Mapping[str, Any]) -> str:
    """Joules for one frame."""
    return "-" if figures["joules_per_frame"] is None else f"{figures['joules_per_frame']:.4f}"


def lines(energy: Mapping[str, Any]) -> list[str]:
    """For a terminal."""
    text = [f"{'energy' if n == 0 else '':8} {line}" for n, line in enumerate(in_words(energy))]
    if energy["board_joules"] is None:
        return text
    for model, told in energy["models"].items():
        cameras = list(told["cameras"].items())
        shown = ", ".join(f"{name} {each(figures)}" for name, figures in cameras[:CAMERAS_SHOWN])
        more = f", and {len(cameras) - CAMERAS_SHOWN} more" if len(cameras) > CAMERAS_SHOWN else ""
        text.append(f"         {model}: {each(told)} J a frame above idle, {told['frames']} frames ({shown}{more})")
    return text
