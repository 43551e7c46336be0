"""What the steward tells main to obey: batch size and pacing, with a term of validity. Pure; JSON on the channel.

Sent by steward.py, obeyed by main's admission and batcher. Invariant: limits end. Main asks `in_force` with its own
clock, so a dead or hung steward leads to the policy's lowest pacing, never to no limit.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields

from .errors import PowerError

# from least to most restricting; `level` is for people and metrics, main obeys the numbers
LEVELS = ("free", "warm", "over_budget", "hot", "lowest")


@dataclass(frozen=True, slots=True)
class Limits:
    """Valid until `expires_ns` (CLOCK_MONOTONIC; None: for ever). pace_hz in frames/s, None means unpaced. degrade:
    main enters its levels of degradation, one after the other, for this reason."""

    expires_ns: int | None
    batch_max: int
    pace_hz: float | None
    level: str
    reason: str
    degrade: bool = False

    def to_json(self) -> str:
        """One line of JSON, for the channel."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | bytes) -> Limits:
        """Parse and check; raises PowerError. Whatever is malformed is refused whole: main keeps the old and lets
        them expire."""
        try:
            got = json.loads(text)
        except ValueError as error:
            raise PowerError(f"limits are not JSON: {error}") from error
        if not isinstance(got, dict) or set(got) != _KEYS:
            raise PowerError(f"limits must be an object with {', '.join(sorted(_KEYS))}")
        expires, batch, pace = got["expires_ns"], got["batch_max"], got["pace_hz"]
        if expires is not None and type(expires) is not int:
            raise PowerError(f"limits: expires_ns must be a whole number or null, not {expires!r}")
        if type(batch) is not int or batch < 1:
            raise PowerError(f"limits: batch_max must be a whole number from 1, not {batch!r}")
        if pace is not None and (type(pace) not in (int, float) or not 0 < pace < 1e6):
            raise PowerError(f"limits: pace_hz must be a positive number or null, not {pace!r}")
        if got["level"] not in LEVELS or not isinstance(got["reason"], str):
            raise PowerError(f"limits: level must be one of {', '.join(LEVELS)} with a reason, not {got['level']!r}")
        if type(got["degrade"]) is not bool:
            raise PowerError(f"limits: degrade must be true or false, not {got['degrade']!r}")
        pace_hz = None if pace is None else float(pace)
        return cls(expires, batch, pace_hz, got["level"], got["reason"], got["degrade"])


_KEYS = {f.name for f in fields(Limits)}


def in_force(latest: Limits | None, now_ns: int, lowest: Limits) -> Limits:
    """The limits that hold now: the latest while valid, else the policy's lowest."""
    if latest is None or (latest.expires_ns is not None and now_ns >= latest.expires_ns):
        return lowest
    return latest
