"""The engines that were lost, for a person: how many of what, and the last failover.

For the terminal and the page, from the status: its `losses` by fault and its `failover`. Pure.
"""

from __future__ import annotations

from typing import Any

from .age import age
from .faults import Fault


def counts(status: dict[str, Any]) -> list[tuple[int, str]]:
    """How many engines were lost, and what that kind of loss means: a pair for each kind that there was."""
    meanings = {fault.value: fault.meaning for fault in Fault}  # a newer daemon may know more
    return [(count, meanings.get(name, name)) for name, count in status["losses"].items()]


def last_failover(status: dict[str, Any], now_ns: int) -> str:
    """Empty where there was none. `now_ns` is of the monotonic clock of the daemon's machine."""
    last = status["failover"]
    if not last:
        return ""
    frames = f"{last['frames']} {'frame' if last['frames'] == 1 else 'frames'} in flight"
    return f"{age((now_ns - last['at_ns']) / 1e9)} ago, {frames}: {last['reason']}"
