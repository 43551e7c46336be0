"""The engines that were lost, for a person: of what, how many, and what became of the frames of the last active one.

For the terminal and the page, from the status: its `losses` by fault and its `failover`. Pure.
"""

from __future__ import annotations

from typing import Any

from .faults import Fault


def lines(status: dict[str, Any], now_ns: int) -> list[str]:
    """None where none was lost. `now_ns` is of the monotonic clock of the daemon's machine."""
    text = [f"{count} {'engine' if count == 1 else 'engines'}: {Fault(name).meaning}"
            for name, count in status["losses"].items()]
    if last := status["failover"]:
        frames = last["frames"]
        given = f"{frames} {'frame' if frames == 1 else 'frames'} in flight"
        text.append(f"last failover {_age((now_ns - last['at_ns']) / 1e9)} ago, {given}: {last['reason']}")
    return text


def _age(seconds: float) -> str:
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"
