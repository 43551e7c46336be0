"""What orind promises unless a configuration gives it up: a note each, which begins with the dotted key to look at.

Called by `config.py`; printed by `orind check`, logged at every start, told with every reload. Pure. A note refuses
nothing: on a busy machine somebody may want it so, but knowingly.
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
            f"engine.heartbeat_missed_ms: {engine.heartbeat_missed_ms:g} and up to {TAKE_OVER_MS} ms for a take-over "
            f"do not stay below the {FAILOVER_BOUND_MS} ms within which a standby is to serve after an idle engine "
            "hangs"
        )
