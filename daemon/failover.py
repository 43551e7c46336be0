"""Which engine may receive frames: a pure state machine over one generation's engines.

Called by `generation.py` with what happened and the time; answers with the actions to take, each with its reason.
It opens, kills and sends nothing, so every schedule of faults can be tested in simulated time.
Invariant: at most one engine is `active`; an engine that was fenced never receives a frame again.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum

RESPAWN_AFTER_NS = 200_000_000


class Standing(str, Enum):
    """What an engine is good for at the moment."""

    STARTING = "starting"
    READY = "ready"
    ACTIVE = "active"


@dataclass(frozen=True, slots=True)
class Promote:
    """Send frames to this engine from now on; the previous one's frames in flight go to it first."""

    epoch: int
    reason: str


@dataclass(frozen=True, slots=True)
class Fence:
    """Believe nothing more from this engine, take back its frames, kill it."""

    epoch: int
    reason: str


@dataclass(frozen=True, slots=True)
class Spawn:
    """Start another engine."""

    reason: str


@dataclass(frozen=True, slots=True)
class Check:
    """Have this idle engine run its golden input now."""

    epoch: int


Action = Promote | Fence | Spawn | Check


@dataclass(frozen=True, slots=True)
class Rules:
    """Times in ns. An idle engine beats every `heartbeat`; `missed` without one means hung."""

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


@dataclass(slots=True)
class Failover:
    """The machine. Every method returns the actions that the event calls for, in the order to carry them out."""

    rules: Rules
    engines: dict[int, Engine] = field(default_factory=dict)
    failovers: int = 0
    failed: str = ""
    _deaths: deque[int] = field(default_factory=deque)
    _spawns_pending: int = 0
    _spawn_at_ns: int = 0
    _backoff_ns: int = 0
    _ended: bool = False

    # -- facts ---------------------------------------------------------------------------------------------------

    @property
    def active(self) -> int | None:
        return next((e.epoch for e in self.engines.values() if e.standing is Standing.ACTIVE), None)

    def standby_ready(self, now_ns: int) -> bool:
        """A standby counts only with a right golden answer younger than two check intervals."""
        limit = 2 * self.rules.golden_interval_ns
        return any(e.standing is Standing.READY and now_ns - e.golden_ns <= limit for e in self.engines.values())

    def all_ready(self) -> bool:
        good = sum(e.standing in (Standing.READY, Standing.ACTIVE) for e in self.engines.values())
        return good >= self.rules.engines

    # -- events --------------------------------------------------------------------------------------------------

    def start(self) -> list[Action]:
        """Begin a generation: ask for its engines."""
        self._spawns_pending = self.rules.engines
        return [Spawn("start of the generation") for _ in range(self.rules.engines)]

    def spawned(self, epoch: int, now_ns: int) -> None:
        self._spawns_pending -= 1
        self.engines[epoch] = Engine(epoch, born_ns=now_ns, heard_ns=now_ns)

    def ready(self, epoch: int, now_ns: int) -> list[Action]:
        """The engine has loaded its plans and answered its golden input rightly."""
        engine = self.engines.get(epoch)
        if engine is None or engine.standing is not Standing.STARTING:
            return []
        engine.standing, engine.heard_ns, engine.golden_ns = Standing.READY, now_ns, now_ns
        self._backoff_ns = 0
        return self._promote_if_none("first engine ready")

    def heard(self, epoch: int, now_ns: int) -> None:
        engine = self.engines.get(epoch)
        if engine is not None:
            engine.heard_ns = now_ns

    def golden(self, epoch: int, ok: bool, text: str, now_ns: int) -> list[Action]:
        engine = self.engines.get(epoch)
        if engine is None:
            return []
        engine.heard_ns, engine.check_sent_ns = now_ns, 0
        if ok:
            engine.golden_ns = now_ns
            return []
        return self.lost(epoch, f"wrong golden answer: {text}", now_ns)

    def busy(self, epoch: int, since_ns: int) -> None:
        """When the batch now running began, 0 when nothing is in flight. Starts the batch watchdog."""
        engine = self.engines.get(epoch)
        if engine is not None:
            engine.busy_since_ns = since_ns

    def lost(self, epoch: int, reason: str, now_ns: int) -> list[Action]:
        """The engine died, reported a fault, answered wrongly or went silent. A second report is ignored."""
        engine = self.engines.pop(epoch, None)
        if engine is None:
            return []
        was_active = engine.standing is Standing.ACTIVE
        actions: list[Action] = [Fence(epoch, reason)]
        if was_active:
            self.failovers += 1
            actions += self._promote_if_none(reason)
        self._schedule_respawn(now_ns, reason)
        return actions

    def overdue(self, epoch: int, now_ns: int) -> bool:
        """Whether the next tick would give this engine up: look once more whether it has said anything."""
        engine = self.engines.get(epoch)
        return engine is not None and bool(self._overdue(engine, now_ns))

    def spawn_failed(self, reason: str, now_ns: int) -> list[Action]:
        self._spawns_pending -= 1
        self._schedule_respawn(now_ns, reason)
        return []

    def end(self) -> None:
        """The generation is draining: nothing is started any more."""
        self._ended = True

    def tick(self, now_ns: int) -> list[Action]:
        """What the passing of time calls for. Call it after every socket was read: a late main is not a dead engine."""
        actions: list[Action] = []
        for engine in list(self.engines.values()):
            reason = self._overdue(engine, now_ns)
            if reason:
                actions += self.lost(engine.epoch, reason, now_ns)
            elif self._wants_check(engine, now_ns):
                engine.check_sent_ns = now_ns
                actions.append(Check(engine.epoch))
        return actions + self._respawn(now_ns)

    # -- decisions -----------------------------------------------------------------------------------------------

    def _promote_if_none(self, reason: str) -> list[Action]:
        if self.active is not None:
            return []
        candidates = [e for e in self.engines.values() if e.standing is Standing.READY]
        if not candidates:
            return []
        best = max(candidates, key=lambda e: e.golden_ns)
        best.standing = Standing.ACTIVE
        return [Promote(best.epoch, reason)]

    def _overdue(self, engine: Engine, now_ns: int) -> str:
        rules = self.rules
        if engine.standing is Standing.STARTING:
            late = now_ns - engine.born_ns > rules.ready_timeout_ns
            return f"not ready within {rules.ready_timeout_ns / 1e9:.1f} s" if late else ""
        if engine.busy_since_ns:
            late = now_ns - engine.busy_since_ns > rules.batch_watchdog_ns
            return f"batch over its watchdog of {rules.batch_watchdog_ns / 1e6:.0f} ms" if late else ""
        if engine.check_sent_ns:
            late = now_ns - engine.check_sent_ns > rules.golden_timeout_ns
            return f"golden check not answered within {rules.golden_timeout_ns / 1e6:.0f} ms" if late else ""
        late = now_ns - engine.heard_ns > rules.heartbeat_missed_ns
        return f"no heartbeat for {rules.heartbeat_missed_ns / 1e6:.0f} ms" if late else ""

    def _wants_check(self, engine: Engine, now_ns: int) -> bool:
        return (
            engine.standing is Standing.READY
            and not engine.check_sent_ns
            and now_ns - engine.golden_ns >= self.rules.golden_interval_ns
        )

    def _schedule_respawn(self, now_ns: int, reason: str) -> None:
        self._deaths.append(now_ns)
        while self._deaths and now_ns - self._deaths[0] > self.rules.restart_window_ns:
            self._deaths.popleft()
        if len(self._deaths) > self.rules.restart_budget:
            self.failed = (
                f"{len(self._deaths)} engines lost within {self.rules.restart_window_ns / 1e9:.0f} s, "
                f"the last one: {reason}"
            )
        # Where another engine serves, its replayed frames go first: a starting engine would compete with them.
        others = RESPAWN_AFTER_NS if any(e.standing is not Standing.STARTING for e in self.engines.values()) else 0
        self._spawn_at_ns = now_ns + max(self._backoff_ns, others)
        self._backoff_ns = min(max(2 * self._backoff_ns, self.rules.backoff_first_ns), self.rules.backoff_max_ns)

    def _respawn(self, now_ns: int) -> list[Action]:
        if self.failed or self._ended or now_ns < self._spawn_at_ns:
            return []
        missing = self.rules.engines - len(self.engines) - self._spawns_pending
        self._spawns_pending += max(0, missing)
        return [Spawn("to replace an engine that was lost") for _ in range(missing)]
