"""Which steps of a plan an engine runs on the GPU and which on the CPU: as an engine tells it, main keeps it and people
read it.

Used by the engine loop, the generation, `orind status` and the page. Invariant: counts are always whole; names are left
out where they are more than a status can hold, and then it says how many.
"""

from __future__ import annotations

import json
from typing import Any

from ..ipc.bounded_text import bound_text
from ..ipc.message_text import TEXT_BYTES_MAX
from ..kernels.placement import Placement

NAME_CHARS_MAX = 200
ALL_MODELS_BYTES_MAX = 65_536
"""Of all models together, as JSON: half of what a reply on the control socket holds."""


def to_text(index: int, placement: Placement, models: int) -> str:
    """Plan number `index` of `models` as JSON in one notice: {model, steps, cpu_steps, gpu_segments, on_cpu}, the last
    {operator: {count, names}}."""
    names: dict[str, list[str]] = {}
    for name, operator in placement.on_cpu:
        names.setdefault(operator, []).append(bound_text(name, NAME_CHARS_MAX))
    shown = max(map(len, names.values()), default=0)
    limit = min(TEXT_BYTES_MAX, ALL_MODELS_BYTES_MAX // models)
    while True:
        fields = {
            "model": index, "steps": placement.steps, "cpu_steps": len(placement.on_cpu),
            "gpu_segments": placement.segments,
            "on_cpu": {key: {"count": len(every), "names": every[:shown]} for key, every in names.items()},
        }
        text = json.dumps(fields, separators=(",", ":"))
        if len(text) <= limit or not shown:
            return text
        shown -= 1


def from_text(text: str) -> tuple[int, dict[str, Any]]:
    """The plan's number and the table without it. Raises ValueError for what `to_text` does not write."""
    fields = json.loads(text)
    counts = ("model", "steps", "cpu_steps", "gpu_segments")
    if type(fields) is not dict or set(fields) != {*counts, "on_cpu"}:
        raise ValueError("not a placement")
    if any(type(fields[key]) is not int or fields[key] < 0 for key in counts) or type(fields["on_cpu"]) is not dict:
        raise ValueError("not a placement's numbers")
    for entry in fields["on_cpu"].values():
        if type(entry) is not dict or set(entry) != {"count", "names"} or type(entry["count"]) is not int:
            raise ValueError("not a placement's list")
        if type(entry["names"]) is not list or any(type(name) is not str for name in entry["names"]):
            raise ValueError("not a placement's names")
    return fields.pop("model"), fields


def in_words(placement: dict[str, Any]) -> str:
    """One line with the counts."""
    kinds = ", ".join(f"{entry['count']} {operator}" for operator, entry in placement["on_cpu"].items())
    where = f"{placement['cpu_steps']} of {placement['steps']} steps run on the CPU" + (f" ({kinds})" if kinds else "")
    segments = placement["gpu_segments"]
    return f"{where}, {segments} GPU segment{'s' * (segments != 1)}"


def listed(placement: dict[str, Any]) -> list[str]:
    """A line an operator, with the names of its steps."""
    lines = []
    for operator, entry in placement["on_cpu"].items():
        more = entry["count"] - len(entry["names"])
        lines.append(f"{operator}: {', '.join([*entry['names'], *([f'and {more} more'] if more else [])])}")
    return lines
