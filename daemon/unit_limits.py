"""Time-outs of the configuration that systemd's would cut off: each line names both, the key first.

Called by the checker, so that a start, a reload and `orind check` all refuse them. Pure. The watchdog, which systemd
tells the service itself, is judged in notify.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from .config import Config
from .unit_file import UnitTimeOuts

CHECK_S = 60  # the checker's own bound (config_check.CHECK_TIMEOUT_NS)
END_S = 5  # after a drain: answers have half a second to leave, the nursery's children 3 s to end


def contradictions(config: Config, unit: UnitTimeOuts) -> Iterator[str]:
    drain_s, ready_s = config.stop.drain_timeout_s, config.engine.ready_timeout_s
    if drain_s + END_S > unit.stop.seconds:
        yield (
            f"stop.drain_timeout_s: {drain_s:g} s and {END_S} s for the end of the processes must fit into "
            f"{unit.stop.said}, or systemd kills a drain"
        )
    if CHECK_S + ready_s > unit.start.seconds:
        yield (
            f"engine.ready_timeout_s: {ready_s:g} s and {CHECK_S} s for the check of the configuration must fit into "
            f"{unit.start.said}, which bounds start and reload"
        )
