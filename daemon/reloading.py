"""A reload: check the whole new configuration, start its engines beside the old ones, switch, drain the old. A rollback
is the same with what served before the last good reload, which is kept, in place of the file's configuration.

Owned by `daemon.py`; acts only through it. Invariants: until the switch nothing of the running service has changed, so
a refusal needs no undoing, and behind it nothing can be refused any more. Requests that come before the checker is
started lead to that one reload; those that come during it, to exactly one more after it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

import zmq

from ..ipc.bounded_text import bound_text, bound_texts
from ..ipc.errors import IpcError
from .candidate import Candidate, PowerTables
from .config import Config
from .config_check import ConfigCheck
from .control_desk import Reply
from .generation import Generation
from .nursery_client import NurseryClient
from .poller import Watcher

log = logging.getLogger("orind")
WAITING_MAX = 64  # clients that left count until the reload is over
UNCHANGED = "refused, nothing has changed"
REFUSALS = (OSError, zmq.ZMQError, IpcError)  # what a full disk, no descriptor, a port in use come as
LOST = "a new engine was lost before it served"
NOTHING_KEPT = "there is nothing to go back to: no reload has taken effect since the start or the last rollback"


class Host(Protocol):
    """What a reload asks of main."""

    generation: Generation

    def afford(self, candidate: Candidate) -> None: ...
    def new_generation(self, candidate: Candidate) -> Generation: ...
    def open(self, config: Config) -> list[str]: ...
    def switch(self, generation: Generation, power: PowerTables, now_ns: int) -> None: ...
    def reload_began(self) -> None: ...
    def reload_ended(self, result: str) -> None: ...


class Reloading:
    """At most one reload or rollback at a time. `differs`: why what serves is not what the file says, or ''."""

    def __init__(self, host: Host, nursery: NurseryClient, watcher: Watcher, path: str, power: PowerTables) -> None:
        """`power`: of what serves now."""
        self._host = host
        self._nursery = nursery
        self._watcher = watcher
        self._path = path
        self._wanted = self._rollback = False
        self._stopped = ""
        self._waiting: list[Reply] = []  # for the reload that is wanted
        self._replies: list[Reply] = []  # for what is running
        self._check: ConfigCheck | None = None
        self._next: Generation | None = None
        self._power = power  # of what serves
        self._asked: Candidate | None = None  # what `_next` is made of, as it was asked for
        self._deadline_ns = 0
        self._serving: tuple[int, Candidate] | None = None  # while `_next` is under way: what serves until then
        self._kept: tuple[int, Candidate] | None = None  # what served before the last good reload
        self.requested = self.done = self.rollbacks = 0
        self.result = self.differs = ""

    @property
    def running(self) -> bool:
        return self._rollback or self._check is not None or self._next is not None

    @property
    def can_roll_back(self) -> bool:
        return self._kept is not None

    def request(self, op: str, reply: Reply | None) -> str:
        """Ask for a `reload` or a `rollback`; the next tick begins it. Returns why it is refused at once, or ''.

        `reply` is called once with {ok, result, problems, notes} when it is done or refused. A rollback is refused
        while a reload is wanted or under way: what is to be undone would not be clear.
        """
        self.requested += op == "reload"
        refusal = self._stopped or (self._no_rollback() if op == "rollback" else "")
        if refusal:
            log.error("%s: %s", op, refusal)
            _refuse(reply, refusal)
        elif reply is not None and len(self._waiting) >= WAITING_MAX:
            reply({"ok": False, "error": f"busy: {WAITING_MAX} requests wait for the next reload already"})
        elif op == "rollback":
            self._rollback, self._replies = True, [reply] if reply is not None else []
        else:
            self._wanted = True
            self._waiting += [reply] if reply is not None else []
        return refusal

    def _no_rollback(self) -> str:
        if self.running or self._wanted:
            return f"{UNCHANGED}: a reload is under way, ask again when it is over"
        return "" if self._kept is not None else f"{UNCHANGED}: {NOTHING_KEPT}"

    def tick(self, now_ns: int) -> None:
        if self._check is not None:
            self._check.tick(now_ns)
            if self._check.answer is not None:
                self._checked(self._check, self._check.answer["problems"], now_ns)
        elif self._next is not None:
            self._await_engines(self._next, now_ns)
        elif self._rollback:
            self._begin_rollback(now_ns)
        elif self._wanted:
            self._begin(now_ns)

    def abandon(self, text: str, now_ns: int) -> None:
        """The daemon stops: whoever waits, and whoever asks from now on, is told."""
        waiting, self._waiting = self._waiting, []
        self._stopped, self._wanted = text, False
        if self.running:
            self._finish(False, text, [], now_ns)
        for reply in waiting:
            _refuse(reply, text)

    def close(self) -> None:
        """End what is under way and let go of what was kept. A daemon that ends by a fault comes here at once."""
        self.abandon("refused: the daemon ends", 0)
        if self._kept is not None:
            self._kept[1].close()
            self._kept = None

    # -- the steps -----------------------------------------------------------------------------------------------

    def _begin(self, now_ns: int) -> None:
        log.info("reload: checking %s", self._path)
        self._wanted = False
        self._replies, self._waiting = self._waiting, []
        self._host.reload_began()
        try:
            self._check = ConfigCheck(self._nursery, self._watcher, self._path, now_ns)
        except REFUSALS as error:
            self._finish(False, UNCHANGED, [f"no checker can be started: {_text(error)}"], now_ns)

    def _checked(self, check: ConfigCheck, problems: Sequence[str], now_ns: int) -> None:
        if problems:
            self._finish(False, UNCHANGED, problems, now_ns)
            return
        candidate, self._check = check.take(), None
        self._start(candidate, now_ns)

    def _begin_rollback(self, now_ns: int) -> None:
        assert self._kept is not None
        log.info("rollback: to what generation %d served", self._kept[0])
        self._host.reload_began()
        try:
            candidate = self._kept[1].duplicate()
        except REFUSALS as error:
            self._finish(False, UNCHANGED, [_text(error)], now_ns)
            return
        self._start(candidate, now_ns)

    def _start(self, candidate: Candidate, now_ns: int) -> None:
        """Everything that could be short is taken or asked for here, before the switch."""
        try:
            served = self._host.generation
            self._serving = served.number, Candidate(served.config, served.plans, self._power).duplicate()
            self._host.afford(candidate)
            self._next = self._host.new_generation(candidate)
            self._asked = candidate
            self._deadline_ns = now_ns + int(candidate.config.engine.ready_timeout_s * 1e9)
            self._next.start(now_ns)
        except REFUSALS as error:
            if self._next is None:
                candidate.close()
            self._finish(False, UNCHANGED, [_text(error)], now_ns)

    def _await_engines(self, generation: Generation, now_ns: int) -> None:
        """An engine that is lost before the switch refuses the reload: what serves is better than what stumbles."""
        if not generation.machine.losses:
            generation.tick(now_ns)
        if generation.machine.losses:
            self._finish(False, UNCHANGED, [f"{LOST}: {generation.machine.restarts.last_loss}"], now_ns)
        elif generation.machine.all_ready():
            self._switch(generation, now_ns)
        elif now_ns > self._deadline_ns:
            self._finish(False, UNCHANGED, ["its engines were not ready in time"], now_ns)

    def _switch(self, generation: Generation, now_ns: int) -> None:
        """Endpoints come last: one that was bound for a configuration that then cannot serve would swallow frames."""
        assert self._serving is not None and self._asked is not None
        try:
            notes = bound_texts(self._host.open(self._asked.config))
        except REFUSALS as error:
            self._finish(False, UNCHANGED, [_text(error)], now_ns)
            return
        before, self._serving, self._next = self._serving, None, None
        self._power = self._asked.power
        self._host.switch(generation, self._power, now_ns)
        result = f"generation {generation.number} serves"
        if self._kept is not None:
            origin, kept = self._kept
            kept.close()
        if self._rollback:
            self.rollbacks += 1
            result += f" what generation {origin} served"
            if not self._asked.serves_as(before[1]):  # what the file said at the last good reload
                self.differs = (
                    f"rolled back to what generation {origin} served, {self._path} may say otherwise: "
                    "a reload or a restart loads the file"
                )
                log.warning("%s", self.differs)
            before[1].close()
            self._kept = None
        else:
            self._kept = before
            self.done += 1
            self.differs = ""
        self._finish(True, result, [], now_ns, notes)

    def _finish(self, ok: bool, result: str, problems: Sequence[str], now_ns: int, notes: Sequence[str] = ()) -> None:
        if self._next is not None:
            self._next.close()
            self._next = None
        if self._check is not None:
            self._check.close()
            self._check = None
        if self._serving is not None:
            self._serving[1].close()
            self._serving = None
        what, self._rollback = "rollback" if self._rollback else "reload", False
        problems = bound_texts(problems)
        all_of_them = f" ({len(problems)} mistakes, all in the log)" if len(problems) > 1 else ""
        self.result = bound_text(result if not problems else f"{result}{all_of_them}: {problems[0]}")
        log.log(logging.INFO if ok else logging.ERROR, "%s: %s", what, self.result)
        for text in problems[1:]:
            log.error("%s: also: %s", what, text)
        for text in notes:
            log.warning("%s: note: %s", what, text)
        replies, self._replies = self._replies, []
        for reply in replies:
            reply({"ok": ok, "result": bound_text(result), "problems": problems, "notes": list(notes)})
        self._host.reload_ended(self.result)


def _refuse(reply: Reply | None, result: str) -> None:
    if reply is not None:
        reply({"ok": False, "result": result, "problems": [], "notes": []})


def _text(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)
