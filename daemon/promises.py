"""What orind promises unless a configuration gives it up: a note each, which names the dotted key to look at.

Called by `config.py`; printed by `orind check`, logged at every start, told with a reload that brings it. Pure. A note
refuses nothing: on a busy machine somebody may want it so, but knowingly.
"""

from __future__ import annotations

from collections.abc import Iterator

from .sections import EngineSection

FAILOVER_BOUND_MS = 200
"""From the last sign of life of an idle engine to the standby at work."""
TAKE_OVER_MS = 30
"""Of it: from the detection on, beside the time of a batch, what a take-over may add (scripts/bench_failover)."""


def of_failover(engine: EngineSection) -> Iterator[str]:
    if engine.heartbeat_missed_ms + TAKE_OVER_MS >= FAILOVER_BOUND_MS:
        yield (
            f"a hung idle engine is replaced after about {engine.heartbeat_missed_ms + TAKE_OVER_MS:g} ms; the aim is "
            f"less than {FAILOVER_BOUND_MS} ms (lower engine.heartbeat_missed_ms)"
        )
