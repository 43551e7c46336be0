"""Each camera's frames, for a person: how many of which outcome, how long it has been silent, what went wrong last.

For the terminal and the page, from the status: its `cameras`. Pure.
"""

from __future__ import annotations

from typing import Any

from ..ipc.outcomes import OUTCOMES
from .age import age


def rows(status: dict[str, Any], now_ns: int) -> list[tuple[str, dict[str, int], str, str]]:
    """Camera, triggers by outcome, how long ago the last one came, and what became of the last one not answered ok.

    The last two are '' where there was none. `now_ns` is of the monotonic clock of the daemon's machine.
    """
    return [
        (camera, {name: told["frames"].get(name, 0) for name in OUTCOMES}, _came(told, now_ns), _went(told, now_ns))
        for camera, told in status["cameras"].items()
    ]


def lines(status: dict[str, Any], now_ns: int) -> list[str]:
    return [
        f"camera   {camera}: " + "".join(f"{name} {n}  " for name, n in counts.items() if n)
        + (f"last frame {came}" if came else "no frame yet") + (f"; last not ok {went}" if went else "")
        for camera, counts, came, went in rows(status, now_ns)
    ]


def _came(told: dict[str, Any], now_ns: int) -> str:
    return "" if told["last_ns"] is None else _ago(told["last_ns"], now_ns)


def _went(told: dict[str, Any], now_ns: int) -> str:
    last = told["not_ok"]
    return "" if last is None else f"{_ago(last['at_ns'], now_ns)}: {last['outcome']}: {last['reason']}"


def _ago(at_ns: int, now_ns: int) -> str:
    return f"{age(max(0, now_ns - at_ns) / 1e9)} ago"
