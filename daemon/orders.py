"""What the failover machine orders a generation to do, each order with its reason. Values only."""

from __future__ import annotations

from dataclasses import dataclass, field

from .faults import Fault
from .standing import Seat


@dataclass(frozen=True, slots=True)
class Promote:
    """Send frames to this engine from now on; a fenced one's frames in flight go to it first."""

    epoch: int
    reason: str


@dataclass(frozen=True, slots=True)
class Fence:
    """Believe nothing more from this engine, take back its frames, kill it."""

    epoch: int
    fault: Fault
    reason: str
    was_active: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class Retire:
    """Let this engine go, and nobody is to blame; what it has in flight goes to its successor."""

    epoch: int
    reason: str


@dataclass(frozen=True, slots=True)
class Spawn:
    """Start an engine for this seat."""

    seat: Seat
    reason: str


@dataclass(frozen=True, slots=True)
class Check:
    """Have this idle engine run its golden input now."""

    epoch: int


Action = Promote | Fence | Retire | Spawn | Check
