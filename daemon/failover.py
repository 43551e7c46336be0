"""Which engine may receive frames: a pure state machine over one generation's engines.

Called by `generation.py` with what happened and the time; answers with the actions to take, each with its reason.
It opens, kills and sends nothing, so every schedule of faults can be tested in simulated time.
Invariant: at most one engine is `active`; an engine that was fenced never receives a frame again.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from .faults import Fault
from .orders import Action, Check, Fence, Promote, Retire, Spawn
from .restarts import Restarts
from .standing import PAIR, Engine, Rules, Seat, Standing

TAKES_TURN = "it has proved itself, the other one is to"


@dataclass(slots=True)
class Failover:
    """The machine. Every method returns the actions that the event calls for, in the order to carry them out."""

    rules: Rules
    engines: dict[int, Engine] = field(default_factory=dict)
    failovers: int = 0
    renewals: int = 0
    losses: Counter[Fault] = field(default_factory=Counter)
    restarts: Restarts = field(init=False)
    last_resort_restarts: Restarts = field(init=False)
    _asked: list[Seat] = field(default_factory=list)
    _slow_after_ns: int = 0
    _renew_after_ns: int = 0
    _ended: bool = False

    def __post_init__(self) -> None:
        rules = self.rules
        limits = (rules.restart_budget, rules.restart_window_ns, rules.backoff_first_ns, rules.backoff_max_ns)
        self.restarts, self.last_resort_restarts = Restarts(*limits), Restarts(*limits)

    # -- facts ---------------------------------------------------------------------------------------------------

    @property
    def active(self) -> int | None:
        return next((e.epoch for e in self.engines.values() if e.standing is Standing.ACTIVE), None)

    @property
    def failed(self) -> str:
        """'' or why no engine of the pair is started any more."""
        return self.restarts.failed

    @property
    def on_last_resort(self) -> bool:
        return self.active is not None and self.engines[self.active].seat is Seat.LAST_RESORT

    def standby_ready(self, now_ns: int) -> bool:
        """A standby counts only with a right golden answer younger than the interval."""
        return any(
            e.standing is Standing.READY and now_ns - e.golden_ns <= self.rules.golden_interval_ns
            for e in self._pair()
        )

    def all_ready(self) -> bool:
        return sum(e.standing is not Standing.STARTING for e in self._pair()) == len(PAIR)

    def _pair(self) -> list[Engine]:
        return [e for e in self.engines.values() if e.seat in PAIR]

    # -- events --------------------------------------------------------------------------------------------------

    def start(self) -> list[Action]:
        """Begin a generation: ask for its engines."""
        self._asked = list(PAIR)
        return [Spawn(seat, "start of the generation") for seat in PAIR]

    def spawned(self, epoch: int, seat: Seat, now_ns: int) -> None:
        self._asked.remove(seat)
        self.engines[epoch] = Engine(epoch, seat, born_ns=now_ns, heard_ns=now_ns)

    def ready(self, epoch: int, now_ns: int) -> list[Action]:
        """The engine has loaded its plans and answered its golden input rightly."""
        engine = self.engines.get(epoch)
        if engine is None or engine.standing is not Standing.STARTING:
            return []
        engine.standing, engine.heard_ns, engine.golden_ns = Standing.READY, now_ns, now_ns
        self._restarts_of(engine.seat).ready()
        dismissed = self._dismiss_last_resort() if engine.seat in PAIR else []
        return dismissed + self._promote_if_none("first engine ready")

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
        return self.lost(epoch, Fault.WRONG, f"wrong golden answer: {text}", now_ns)

    def served(self, epoch: int, late: bool, now_ns: int) -> list[Action]:
        """It has answered a batch; `late`: after the deadline of a frame that it was given in good time, or far slower
        than usual.

        Slow costs a restart, so it is acted on only where a standby is ready and the engine was in time before (else
        it is the load, and the next engine would be no better), within the budget, and once in its window.
        """
        engine = self.engines.get(epoch)
        if engine is None:
            return []
        engine.heard_ns = now_ns
        engine.late = engine.late + 1 if late else 0
        engine.in_time = engine.in_time or not late
        slow = engine.in_time and engine.late >= self.rules.slow_batches and engine.standing is Standing.ACTIVE
        if not slow or not self.standby_ready(now_ns) or now_ns < self._slow_after_ns or self._at_its_end(now_ns):
            return []
        self._slow_after_ns = now_ns + self.rules.restart_window_ns
        reason = f"{engine.late} batches in a row answered late or far slower than usual"
        return self.lost(epoch, Fault.SLOW, reason, now_ns)

    def wear(self, epoch: int, reason: str) -> None:
        """It works, but a new one would do better: its memory is fragmented. See `_renew`."""
        engine = self.engines.get(epoch)
        if engine is not None:
            engine.worn = reason

    def busy(self, epoch: int, since_ns: int) -> None:
        """When the batch now running began, 0 when nothing is in flight. Starts the batch watchdog."""
        engine = self.engines.get(epoch)
        if engine is not None:
            engine.busy_since_ns = since_ns

    def lost(self, epoch: int, fault: Fault, reason: str, now_ns: int) -> list[Action]:
        """The engine died, reported a fault, answered wrongly or went silent. A second report is ignored."""
        engine = self.engines.pop(epoch, None)
        if engine is None:
            return []
        was_active = engine.standing is Standing.ACTIVE
        self.losses[fault] += 1
        actions: list[Action] = [Fence(epoch, fault, reason, was_active)]
        if was_active:
            self.failovers += 1
            actions += self._promote_if_none(reason)
        self._note_loss(engine.seat, reason, now_ns)
        return actions

    def overdue(self, epoch: int, now_ns: int) -> bool:
        """Whether the next tick would give this engine up: look once more whether it has said anything."""
        engine = self.engines.get(epoch)
        return engine is not None and self._overdue(engine, now_ns) is not None

    def spawn_failed(self, seat: Seat, reason: str, now_ns: int) -> None:
        """It could not even be asked for: no memory, no descriptors."""
        self._asked.remove(seat)
        self.losses[Fault.NOT_STARTED] += 1
        self._note_loss(seat, reason, now_ns)

    def end(self) -> None:
        """The generation is draining: nothing is started any more."""
        self._ended = True

    def tick(self, now_ns: int) -> list[Action]:
        """What the passing of time calls for. Call it after every socket was read: a late main is not a dead engine."""
        actions: list[Action] = []
        # the active one last: a standby that is overdue itself takes nothing over
        for engine in sorted(self.engines.values(), key=lambda engine: engine.standing is Standing.ACTIVE):
            found = self._overdue(engine, now_ns)
            if found is not None:
                actions += self.lost(engine.epoch, *found, now_ns)
        actions += self._renew(now_ns) or self._relieve(now_ns)
        for engine in self.engines.values():
            if self._wants_check(engine, now_ns):
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

    def _relieve(self, now_ns: int) -> list[Action]:
        """Let the standby that has just proved itself serve, so that the active one can be checked without a frame
        waiting behind its check. It waits for a moment without work, so that answers stay in order; not for ever.
        """
        active = self.engines.get(self.active or 0)
        if active is None or self._ended:
            return []
        age_ns, half_ns = now_ns - active.golden_ns, self.rules.golden_interval_ns // 2
        if age_ns < (2 * half_ns if active.busy_since_ns else half_ns):
            return []
        fresh = [
            e for e in self._pair()
            if e.standing is Standing.READY and not e.check_sent_ns and now_ns - e.golden_ns < half_ns
        ]
        if not fresh:
            return []
        active.standing = Standing.READY
        return self._promote_if_none(TAKES_TURN)

    def _renew(self, now_ns: int) -> list[Action]:
        """Replace a worn engine at a moment when it has no work and another one is ready to serve, or serves.

        It is nobody's fault and costs no restart; but it is done within the budget only, and once in its window.
        """
        worn = next((e for e in self._pair() if e.worn and not e.busy_since_ns and not e.check_sent_ns), None)
        if worn is None or now_ns < self._renew_after_ns or self._at_its_end(now_ns):
            return []
        fit = [
            e for e in self._pair()
            if e is not worn and e.standing is not Standing.STARTING and not e.check_sent_ns
            and now_ns - e.golden_ns <= self.rules.golden_interval_ns
        ]
        if not fit or len(self._pair()) < len(PAIR):
            return []
        del self.engines[worn.epoch]
        self._renew_after_ns = now_ns + self.rules.restart_window_ns
        self.renewals += 1
        self._asked.append(worn.seat)
        promoted, retired = self._promote_if_none(worn.worn), Retire(worn.epoch, worn.worn)
        return [*promoted, retired, Spawn(worn.seat, "to replace the worn engine")]

    def _at_its_end(self, now_ns: int) -> bool:
        """No engine can be spared any more: the next loss could not be made good."""
        return bool(self.failed) or self._ended or self.restarts.spent(now_ns)

    def _overdue(self, engine: Engine, now_ns: int) -> tuple[Fault, str] | None:
        rules = self.rules
        if engine.standing is Standing.STARTING:
            since_ns, limit_ns, fault = engine.born_ns, rules.ready_timeout_ns, Fault.NOT_READY
            text = f"not ready within {limit_ns / 1e9:.1f} s"
        elif engine.busy_since_ns:
            since_ns, limit_ns, fault = engine.busy_since_ns, rules.batch_watchdog_ns, Fault.BATCH_OVERDUE
            text = f"batch over its watchdog of {limit_ns / 1e6:.0f} ms"
        elif engine.check_sent_ns:
            since_ns, limit_ns, fault = engine.check_sent_ns, rules.golden_timeout_ns, Fault.CHECK_OVERDUE
            text = f"golden check not answered within {limit_ns / 1e6:.0f} ms"
        else:
            since_ns, limit_ns, fault = engine.heard_ns, rules.heartbeat_missed_ns, Fault.SILENT
            text = f"no heartbeat for {limit_ns / 1e6:.0f} ms"
        return (fault, text) if now_ns - since_ns > limit_ns else None

    def _wants_check(self, engine: Engine, now_ns: int) -> bool:
        return (
            engine.standing is Standing.READY
            and not self._ended
            and not engine.check_sent_ns
            and not engine.busy_since_ns
            and now_ns - engine.golden_ns >= self.rules.golden_interval_ns // 2
        )

    def _restarts_of(self, seat: Seat) -> Restarts:
        return self.restarts if seat in PAIR else self.last_resort_restarts

    def _note_loss(self, seat: Seat, reason: str, now_ns: int) -> None:
        others = any(e.standing is not Standing.STARTING for e in self._pair())
        self._restarts_of(seat).lost(reason, others, now_ns)

    def _respawn(self, now_ns: int) -> list[Action]:
        if self._ended:
            return []
        taken = {e.seat for e in self.engines.values()} | set(self._asked)
        actions: list[Action] = []
        free = [seat for seat in PAIR if seat not in taken]
        if free and self.restarts.due(now_ns):  # one at a tick: where it fails, the back-off holds for the next one
            actions.append(Spawn(free[0], "to replace an engine that was lost"))
        if Seat.LAST_RESORT not in taken and self._wants_last_resort() and self.last_resort_restarts.due(now_ns):
            actions.append(Spawn(Seat.LAST_RESORT, "no engine of the pair can serve"))
        self._asked += [action.seat for action in actions if isinstance(action, Spawn)]
        return actions

    def _wants_last_resort(self) -> bool:
        """Whether the pair cannot serve: after a loss, not while it starts for the first time."""
        pair_serves = any(e.standing is not Standing.STARTING for e in self._pair())
        return self.rules.last_resort and bool(self.restarts.last_loss) and not pair_serves

    def _dismiss_last_resort(self) -> list[Action]:
        """The pair serves again: what the last resort has in flight goes there, where it is sooner done."""
        found = [e.epoch for e in self.engines.values() if e.seat is Seat.LAST_RESORT]
        for epoch in found:
            del self.engines[epoch]
        return [Retire(epoch, "an engine of the pair serves again") for epoch in found]
