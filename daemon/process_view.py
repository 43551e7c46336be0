"""Engines, processes and devices in words: the part of the status that the terminal and the page share.

Invariant: an engine that serves is in the list of processes also before the nursery has looked at it.
"""

from __future__ import annotations

from typing import Any

from . import leaks


def standing(engine: dict[str, Any]) -> str:
    """`active`, or `standby` and what it does: starting, ready, ..."""
    role, state = str(engine["role"]), str(engine["state"])
    return role if role == state else f"{role}, {state}"


def device(engine: dict[str, Any]) -> str:
    """As the configuration names it, and as it calls itself."""
    return f"{engine['device']}: {engine['device_name']}" if engine["device_name"] else str(engine["device"])


def processes(status: dict[str, Any]) -> list[str]:
    """A line each."""
    measured = [process for process in status["processes"] if "pid" in process]
    missing = [engine["pid"] for engine in status["engines"] if engine["pid"] not in {p["pid"] for p in measured}]
    return [leaks.in_words(process) for process in measured] + [f"engine (pid {pid}): not looked at yet"
                                                                for pid in missing]


def devices(status: dict[str, Any]) -> list[str]:
    """A line each, of the memory that is free on it for anybody."""
    return [leaks.in_words(row).removeprefix("device ") for row in status["processes"] if "pid" not in row]
