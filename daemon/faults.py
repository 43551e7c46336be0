"""The ways in which an engine is lost: each with what it means, and whether the frames in flight may have caused it.

Named by `generation.py`, which sees them, and by `failover.py`, which judges time; counted in the status by class.
"""

from __future__ import annotations

from enum import Enum


class Fault(str, Enum):
    """Why an engine receives nothing any more."""

    DIED = "died"
    REPORTED = "reported"
    UNTRUSTED = "untrusted"
    BATCH_OVERDUE = "batch_overdue"
    SILENT = "silent"
    WRONG = "wrong"
    CHECK_OVERDUE = "check_overdue"
    SLOW = "slow"
    NOT_READY = "not_ready"
    NOT_STARTED = "not_started"

    @property
    def meaning(self) -> str:
        return MEANINGS[self]

    @property
    def blames_frames(self) -> bool:
        """Whether the engine was lost at its work, so that a frame that it had may be what did it."""
        return self in (Fault.DIED, Fault.REPORTED, Fault.UNTRUSTED, Fault.BATCH_OVERDUE)


MEANINGS = {
    Fault.DIED: "its process ended, by a signal or by itself",
    Fault.REPORTED: "it reports what ends it, such as a CUDA error, no memory, or why it cannot start",
    Fault.UNTRUSTED: "it says or answers what cannot be, or takes no message",
    Fault.BATCH_OVERDUE: "a batch ran longer than engine.batch_watchdog_ms",
    Fault.SILENT: "idle, without a heartbeat for engine.heartbeat_missed_ms",
    Fault.WRONG: "its golden input gave a wrong answer",
    Fault.CHECK_OVERDUE: "its golden input was not answered within engine.golden_timeout_ms",
    Fault.SLOW: "batch after batch far slower than usual, or slower and so late, though it had been in time before",
    Fault.NOT_READY: "no right golden answer within engine.ready_timeout_s of its start",
    Fault.NOT_STARTED: "its process could not be started: no memory, no descriptors",
}
