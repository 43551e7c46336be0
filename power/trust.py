"""Decides whether the sensors can be believed; a lost sensor counts as hot. Pure.

Called by governor.py with every reading. Rules (DESIGN section 8): junction unreadable; GPU zone unreadable while the
GPU is loaded (rail-gated is normal); a zone unreadable that the policy limits; one of these that jumps more than 20 C
within a second, or stays the same for 30 s while power moved by more than 3 W; a junction far from the hottest zone,
although it is their maximum; board power unreadable, or frozen while the model says it moved.
Invariant: hot within a second of the fact, and trust comes back by itself, only after a stretch of good readings.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from .sensors import Readings

_S = 1_000_000_000
# One failed read is not an emergency: the last verdict holds this long. With a tick it stays well below one second.
_BRIDGE_NS = 4 * _S // 10
_JUMP_MC, _JUMP_NS = 20_000, _S
_STUCK_NS, _STUCK_MOVED_MW = 30 * _S, 3_000
# Power is refreshed every 430 ms; 3 s of the same sum to the milliwatt, in the last 0.6 s of which the model was a
# seventh of full load (6 W on AGX Orin) away from where it began, is a dead register.
_FROZEN_NS, _FROZEN_MOVED_SHARE, _FROZEN_MOVED_NS = 3 * _S, 0.14, 6 * _S // 10
_SETTLED_NS = 9 * _S // 10
# tj is the maximum of the zones; noise and moments of reading are well below this
_OFF_ZONES_MC = 10_000
# Good readings that bring trust back. A stuck sensor looks right again as soon as caution has brought the others
# to its value: the same fault within a minute of that takes twice as long.
_RECOVER_NS, _RECOVER_MAX_NS, _RELAPSE_NS = 5 * _S, 160 * _S, 60 * _S
_LOADED = 0.05
_NUMBER = re.compile(r" -?[0-9]")


@dataclass(slots=True)
class _Zone:
    """One temperature: when it was last readable, its last second, and since when it has not changed."""

    good_ns: int | None = None
    recent: deque[tuple[int, int]] = field(default_factory=deque)
    # bounds of `recent`, as wide as they ever were until they look like a jump
    low_mc: int = 1 << 30
    high_mc: int = -(1 << 30)
    same_since_ns: int = 0
    low_mw: float = 0.0
    high_mw: float = 0.0


class SensorTrust:
    """Judges the readings of one board; state is the history that the rules need. `full_mw`: what full load adds to
    idle at the highest clock."""

    def __init__(self, full_mw: float) -> None:
        self._frozen_moved_mw = _FROZEN_MOVED_SHARE * full_mw
        self._zones = {"junction temperature": _Zone(), "GPU temperature": _Zone()}
        self._limited: dict[str, _Zone] = {}
        self._power_good_ns: int | None = None
        self._power: int | None = None
        self._power_same_ns = 0
        self._load_then: float | None = None
        self._moved_since_ns: int | None = None
        self._first_ns: int | None = None
        self._bad_ns: int | None = None
        self._bad_text = ""
        self._recover_ns = _RECOVER_NS
        self._recovered_ns: int | None = None
        self.power_doubted = False
        """Whether the last reading of board power is lost or cannot be true."""

    def watch(self, zones: Iterable[str]) -> None:
        """These zones have a limit of their own, which ends with their sensor. Those that can always be read: never
        the junction, never one that sleeps (policy_check.py)."""
        self._limited = {name: self._limited.get(name) or _Zone() for name in zones}

    def judge(self, seen: Readings, busy: float | None, load_mw: float | None, now_ns: int) -> str | None:
        """None when the sensors can be believed; else why the board must be taken for hot. An unknown busy share
        counts as loaded, unless the GPU's own load is 0. `load_mw`: what the model says of the load's power."""
        if self._first_ns is None:
            self._first_ns = now_ns
        # engines on the CPU leave the GPU asleep: then it says itself that it does nothing
        loaded = (busy is None or busy > _LOADED) and seen.gpu_busy_permille != 0
        junction, gpu = self._zones["junction temperature"], self._zones["GPU temperature"]
        bad_power = self._judge_power(seen.board_mw, load_mw, now_ns)
        bad_limited = self._judge_limited(seen, now_ns)
        self.power_doubted = bad_power is not None
        bad = (
            self._judge_zone("junction temperature", junction, seen.tj_mc, seen.board_mw, True, now_ns)
            or self._judge_zone("GPU temperature", gpu, seen.zones_mc.get("gpu"), seen.board_mw, loaded, now_ns)
            or _judge_junction(seen)
            or bad_limited
            or bad_power
        )
        if bad is not None:
            if self._bad_ns is None:
                self._recover_ns = self._recovery(bad, now_ns)
            self._bad_ns, self._bad_text = now_ns, bad
            return bad
        if self._bad_ns is not None:
            if now_ns - self._bad_ns < self._recover_ns:
                return f"{self._bad_text} (recovering)"
            self._bad_ns, self._recovered_ns = None, now_ns
        return None

    def _recovery(self, bad: str, now_ns: int) -> int:
        """How long readings must be good after this fault, which has just begun."""
        if self._recovered_ns is None or now_ns - self._recovered_ns >= _RELAPSE_NS \
                or _kind(bad) != _kind(self._bad_text):
            return _RECOVER_NS
        return min(2 * self._recover_ns, _RECOVER_MAX_NS)

    def _lost_for(self, good_ns: int | None, now_ns: int) -> bool:
        since = good_ns if good_ns is not None else self._first_ns
        return since is not None and now_ns - since > _BRIDGE_NS

    def _judge_zone(self, name: str, zone: _Zone, value: int | None, power: int | None, needed: bool,
                    now_ns: int) -> str | None:
        if value is None:
            zone.recent.clear()
            if not needed:
                # asleep: the bridge begins when it is needed again
                zone.good_ns = now_ns
                return None
            return f"{name} lost" if self._lost_for(zone.good_ns, now_ns) else None
        zone.good_ns = now_ns
        before = zone.recent[-1][1] if zone.recent else None
        while zone.recent and now_ns - zone.recent[0][0] > _JUMP_NS:
            zone.recent.popleft()
        zone.recent.append((now_ns, value))
        if value != before or power is None:
            zone.same_since_ns = now_ns
            zone.low_mw = zone.high_mw = float(power or 0)
        else:
            zone.low_mw, zone.high_mw = min(zone.low_mw, power), max(zone.high_mw, power)
        zone.low_mc, zone.high_mc = min(zone.low_mc, value), max(zone.high_mc, value)
        if zone.high_mc - zone.low_mc > _JUMP_MC:
            past = [old for _, old in zone.recent]
            zone.low_mc, zone.high_mc = min(past), max(past)
            if zone.high_mc - zone.low_mc > _JUMP_MC:
                return f"{name} jumped by {(zone.high_mc - zone.low_mc) / 1000:.0f} C within a second"
        if now_ns - zone.same_since_ns >= _STUCK_NS and zone.high_mw - zone.low_mw > _STUCK_MOVED_MW:
            return f"{name} stuck at {value / 1000:.1f} C while power moved by {zone.high_mw - zone.low_mw:.0f} mW"
        return None

    def _judge_limited(self, seen: Readings, now_ns: int) -> str | None:
        """Every one of them, so that the history of none has gaps; the first fault counts."""
        found = []
        for name, zone in self._limited.items():
            if zone.good_ns is None:
                zone.good_ns = now_ns  # a policy may have come to limit it just now
            found.append(self._judge_zone(f"temperature of zone {name}", zone, seen.zones_mc.get(name), seen.board_mw,
                                          True, now_ns))
        return next((fault for fault in found if fault is not None), None)

    def _judge_power(self, power: int | None, load_mw: float | None, now_ns: int) -> str | None:
        if power is None:
            return "board power lost" if self._lost_for(self._power_good_ns, now_ns) else None
        self._power_good_ns = now_ns
        if power != self._power or load_mw is None:
            self._power, self._power_same_ns = power, now_ns
            self._load_then = self._moved_since_ns = None
            return None
        same_ns = now_ns - self._power_same_ns
        if self._load_then is None:
            # the windows of sensor and model, and a late busy signal, must have settled on what they stand for
            self._load_then = load_mw if same_ns >= _SETTLED_NS else None
            return None
        moved = abs(load_mw - self._load_then)
        if moved <= self._frozen_moved_mw:
            self._moved_since_ns = None
        elif self._moved_since_ns is None:
            self._moved_since_ns = now_ns
        if same_ns >= _FROZEN_NS and self._moved_since_ns is not None \
                and now_ns - self._moved_since_ns >= _FROZEN_MOVED_NS:
            return f"board power frozen at {power / 1000:.1f} W while the load moved by {moved / 1000:.1f} W"
        return None


def _kind(fault: str) -> str:
    """Its words before the first number (a zone's name may end with a digit)."""
    return _NUMBER.split(fault, maxsplit=1)[0]


def _judge_junction(seen: Readings) -> str | None:
    """The junction sensor contradicts the others, whose maximum it is."""
    zones = {name: value for name, value in seen.zones_mc.items() if name != "tj"}
    if seen.tj_mc is None or not zones:
        return None
    name = max(zones, key=zones.__getitem__)
    if abs(seen.tj_mc - zones[name]) <= _OFF_ZONES_MC:
        return None
    return f"junction temperature of {seen.tj_mc / 1000:.1f} C contradicts zone {name}, the hottest " \
           f"({zones[name] / 1000:.1f} C)"
