"""What the failover machine knows of an engine, and the times that it judges by. Values only."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from .config import Config


class Standing(str, Enum):
    """What an engine is good for at the moment."""

    STARTING = "starting"
    READY = "ready"
    ACTIVE = "active"


class Seat(str, Enum):
    """Which engine of a generation it is: one of the pair, or the last resort on the CPU."""

    FIRST = "first"
    SECOND = "second"
    LAST_RESORT = "last_resort"


PAIR = (Seat.FIRST, Seat.SECOND)


@dataclass(frozen=True, slots=True)
class Rules:
    """Times in ns. A golden answer counts for `golden_interval`; an idle standby is asked for one at half of it.

    `slow_batches` answered too late in a row make an engine slow. `last_resort`: a CPU engine serves while none of the
    pair can.
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
    slow_batches: int = 3
    last_resort: bool = False


@dataclass(slots=True)
class Engine:
    """One engine as the machine knows it. `busy_since_ns` is 0 while nothing is in flight on it."""

    epoch: int
    seat: Seat
    born_ns: int
    standing: Standing = Standing.STARTING
    heard_ns: int = 0
    golden_ns: int = 0
    check_sent_ns: int = 0
    busy_since_ns: int = 0
    in_time: bool = False
    late: int = 0
    worn: str = ""


def rules_of(config: Config) -> Rules:
    """The failover's times, from the configuration."""
    engine = config.engine
    return Rules(
        heartbeat_missed_ns=int(engine.heartbeat_missed_ms * 1e6),
        ready_timeout_ns=int(engine.ready_timeout_s * 1e9),
        golden_interval_ns=int(engine.golden_interval_s * 1e9),
        golden_timeout_ns=int(engine.golden_timeout_ms * 1e6),
        batch_watchdog_ns=int(engine.batch_watchdog_ms * 1e6),
        restart_budget=engine.restart_budget,
        restart_window_ns=int(engine.restart_window_s * 1e9),
        last_resort=config.standby.last_resort == "cpu",
    )
