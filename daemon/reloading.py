"""A reload: check the whole new configuration, start its engines beside the old ones, switch, drain the old.

Owned by `daemon.py`; acts only through it. Invariant: until the switch nothing of the running service has changed, so a
refused reload needs no undoing. Requests that come during a reload lead to exactly one more after it.
"""

from __future__ import annotations

import json
import logging
import os
import socket
from typing import Any, Protocol

import zmq

from ..ipc.bounded_text import bound_text, bound_texts
from ..ipc.errors import ChannelError, IpcError
from ..ipc.fd_passing import recv_with_fds
from .config import Config
from .control_desk import Reply
from .generation import Generation
from .nursery_client import NurseryClient
from .plans import ServedPlan
from .poller import Watcher

log = logging.getLogger("orind")
CHECK_TIMEOUT_NS = 60_000_000_000
WAITING_MAX = 64  # clients that left count until the reload is over
UNCHANGED = "refused, nothing has changed"
REFUSALS = (OSError, zmq.ZMQError, IpcError)  # what a full disk, no descriptor, a port in use come as


class Host(Protocol):
    """What a reload asks of main."""

    def new_generation(self, config: Config, plans: list[ServedPlan]) -> Generation: ...
    def prepare(self, config: Config) -> list[str]: ...
    def switch(self, generation: Generation, power: dict[str, Any] | None, now_ns: int) -> None: ...
    def reload_began(self) -> None: ...
    def reload_ended(self, result: str) -> None: ...


class ConfigCheck:
    """One run of the checker process. `answer` is None until it has spoken."""

    def __init__(self, nursery: NurseryClient, watcher: Watcher, path: str, now_ns: int) -> None:
        """Raises OSError, IpcError, NurseryDied."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel = ours
        self._watcher = watcher
        self._nursery = nursery
        self._deadline_ns = now_ns + CHECK_TIMEOUT_NS
        self.answer: dict[str, Any] | None = None
        self.fds: list[int] = []
        with theirs:
            try:
                self._child = nursery.spawn("checker", [theirs.fileno()], [path], on_failed=self._fail)
            except BaseException:
                ours.close()
                raise
        watcher.watch(ours.fileno(), self._on_readable)

    def tick(self, now_ns: int) -> None:
        if self.answer is None and now_ns > self._deadline_ns:
            self._give_up(f"checking took longer than {CHECK_TIMEOUT_NS // 10**9} s")

    def close(self) -> None:
        """Nobody waits for the answer any more."""
        if self.answer is None:
            self._give_up("not waited for")
        for fd in self.fds:
            os.close(fd)
        self.fds = []

    def _give_up(self, text: str) -> None:
        """It may hang in a system call for ever: nobody else would end it."""
        self._nursery.kill(self._child)
        self._fail(text)

    def _on_readable(self, now_ns: int) -> None:
        try:
            message = recv_with_fds(self._channel)
            if message is None:
                self._fail("the checker process ended without an answer; its message stands above")
                return
            blob, *self.fds = message.fds
            with os.fdopen(blob, "rb") as file:
                file.seek(0)
                answer = json.loads(file.read())
        except (ChannelError, OSError, ValueError) as error:
            self._give_up(f"the checker's answer cannot be read: {error}")
            return
        self._end(answer)

    def _fail(self, text: str) -> None:
        if self.answer is None:
            self._end({"problems": [text], "config": None, "power": None, "plans": []})

    def _end(self, answer: dict[str, Any]) -> None:
        self.answer = answer
        self._watcher.forget(self._channel.fileno())
        self._channel.close()


def take_plans(check: ConfigCheck) -> list[ServedPlan]:
    """The plans of a good answer; their descriptors belong to the caller from here on."""
    assert check.answer is not None
    fds, check.fds = check.fds, []
    return [ServedPlan.from_dict(plan, fd) for plan, fd in zip(check.answer["plans"], fds, strict=True)]


class Reloading:
    """At most one reload at a time."""

    def __init__(self, host: Host, nursery: NurseryClient, watcher: Watcher, path: str) -> None:
        self._host = host
        self._nursery = nursery
        self._watcher = watcher
        self._path = path
        self._replies: list[Reply] = []
        self._again: list[Reply] = []
        self._wanted_again = False
        self._check: ConfigCheck | None = None
        self._next: Generation | None = None
        self._power: dict[str, Any] | None = None
        self._notes: list[str] = []
        self._deadline_ns = 0
        self.requested = 0
        self.done = 0
        self.result = ""

    @property
    def running(self) -> bool:
        return self._check is not None or self._next is not None

    def request(self, reply: Reply | None, now_ns: int) -> None:
        """Ask for a reload. `reply` is called once with {ok, result, problems, notes} when it is done or refused."""
        self.requested += 1
        if self.running:
            self._wanted_again = True
            if reply is not None and len(self._again) >= WAITING_MAX:
                reply({"ok": False, "error": f"busy: {WAITING_MAX} requests wait for the next reload already"})
            elif reply is not None:
                self._again.append(reply)
            return
        self._replies = [reply] if reply is not None else []
        self._begin(now_ns)

    def tick(self, now_ns: int) -> None:
        if self._check is not None:
            self._check.tick(now_ns)
            if self._check.answer is not None:
                self._checked(self._check, now_ns)
        elif self._next is not None:
            self._await_engines(self._next, now_ns)

    def abandon(self, text: str, now_ns: int) -> None:
        """The daemon stops: whoever waits is told."""
        self._wanted_again, waiting = False, self._again
        self._again = []
        if self.running:
            self._replies += waiting
            self._finish(False, text, [], now_ns)

    def _begin(self, now_ns: int) -> None:
        log.info("reload: checking %s", self._path)
        self._host.reload_began()
        try:
            self._check = ConfigCheck(self._nursery, self._watcher, self._path, now_ns)
        except REFUSALS as error:
            self._finish(False, UNCHANGED, [f"no checker can be started: {_text(error)}"], now_ns)

    def _checked(self, check: ConfigCheck, now_ns: int) -> None:
        answer = check.answer
        assert answer is not None
        if answer["problems"]:
            self._finish(False, UNCHANGED, answer["problems"], now_ns)
            return
        self._power = answer["power"]
        try:
            config = Config.model_validate(answer["config"])
            self._next = self._host.new_generation(config, take_plans(check))
            self._check = None
            self._notes = bound_texts(self._host.prepare(config))
            self._deadline_ns = now_ns + int(config.engine.ready_timeout_s * 1e9)
            self._next.start(now_ns)
        except REFUSALS as error:
            self._finish(False, UNCHANGED, [_text(error)], now_ns)

    def _await_engines(self, generation: Generation, now_ns: int) -> None:
        generation.tick(now_ns)
        if generation.machine.all_ready():
            self._next = None
            self._host.switch(generation, self._power, now_ns)
            self._finish(True, f"generation {generation.number} serves", [], now_ns)
        elif generation.machine.failed or now_ns > self._deadline_ns:
            reason = generation.machine.failed or "its engines were not ready in time"
            self._finish(False, f"refused, nothing has changed: {reason}", [], now_ns)

    def _finish(self, ok: bool, result: str, problems: list[str], now_ns: int) -> None:
        if self._next is not None:
            self._next.close()
            self._next = None
        if self._check is not None:
            self._check.close()
            self._check = None
        self.done += ok
        problems = bound_texts(problems)
        self.result = bound_text(result if not problems else f"{result}: {problems[0]}")
        log.log(logging.INFO if ok else logging.ERROR, "reload: %s", self.result)
        replies, self._replies = self._replies, []
        for reply in replies:
            reply({"ok": ok, "result": bound_text(result), "problems": problems, "notes": self._notes if ok else []})
        self._host.reload_ended(self.result)
        if self._wanted_again:
            self._wanted_again = False
            self._replies, self._again = self._again, []
            self._begin(now_ns)


def _text(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)
