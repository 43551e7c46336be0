"""What the failover machine knows of an engine, and the times by which it judges one. Values only."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Standing(str, Enum):
    """What an engine is good for at the moment."""

    STARTING = "starting"
    READY = "ready"
    ACTIVE = "active"


@dataclass(frozen=True, slots=True)
class Rules:
    """Times in ns. A golden answer counts for `golden_interval`; an idle standby is asked for one at half of it.

    `slow_batches` answered too late in a row make an engine slow.
    """

    heartbeat_missed_ns: int
    ready_timeout_ns: int
    golden_interval_ns: int
    golden_timeout_ns: int
    batch_watchdog_ns: int
    restart_budget: int
    restart_window_ns: int
    backoff_first_ns: int = 100_000_000
    backoff_max_ns: int = 10_000_000_000
    engines: int = 2
    slow_batches: int = 3


@dataclass(slots=True)
class Engine:
    """One engine as the machine knows it. `busy_since_ns` is 0 while nothing is in flight on it."""

    epoch: int
    born_ns: int
    standing: Standing = Standing.STARTING
    heard_ns: int = 0
    golden_ns: int = 0
    check_sent_ns: int = 0
    busy_since_ns: int = 0
    in_time: bool = False
    late: int = 0
    worn: str = ""
