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

from ..ipc.errors import EndpointError
from ..ipc.fd_passing import recv_with_fds
from ..kernels.model import Interface
from ..kernels.spec import ModelSpec
from .config import Config
from .control_desk import Reply
from .generation import Generation, ServedPlan
from .nursery_client import NurseryClient
from .poller import Watcher

log = logging.getLogger("orind")
CHECK_TIMEOUT_NS = 60_000_000_000


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
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel = ours
        self._watcher = watcher
        self._deadline_ns = now_ns + CHECK_TIMEOUT_NS
        self.answer: dict[str, Any] | None = None
        self.fds: list[int] = []
        nursery.spawn("checker", [theirs.fileno()], [path], on_failed=self._fail)
        theirs.close()
        watcher.watch(ours.fileno(), self._on_readable)

    def tick(self, now_ns: int) -> None:
        if self.answer is None and now_ns > self._deadline_ns:
            self._fail(f"checking took longer than {CHECK_TIMEOUT_NS // 10**9} s")

    def close(self) -> None:
        """Nobody waits for the answer any more."""
        if self.answer is None:
            self._fail("not waited for")

    def _on_readable(self, now_ns: int) -> None:
        message = recv_with_fds(self._channel)
        if message is None:
            self._fail("the checker process ended without an answer; its message stands above")
            return
        blob, *self.fds = message.fds
        with os.fdopen(blob, "rb") as file:
            file.seek(0)
            answer = json.loads(file.read())
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
    return [
        ServedPlan(
            p["name"],
            fd,
            p["path"],
            p["sha256"],
            p["bytes"],
            ModelSpec.from_json(p["spec"]),
            read_interface(p["interface"]),
        )
        for p, fd in zip(check.answer["plans"], fds, strict=True)
    ]


def read_interface(raw: dict[str, Any]) -> Interface:
    return Interface(
        raw["input_dtype"], tuple(raw["input_shape"]), raw["rows_max"], raw["row_width"], tuple(raw["tensor_shape"])
    )


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
            self._again += [reply] if reply is not None else []
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
        self._check = ConfigCheck(self._nursery, self._watcher, self._path, now_ns)

    def _checked(self, check: ConfigCheck, now_ns: int) -> None:
        answer = check.answer
        assert answer is not None
        self._check = None
        if answer["problems"]:
            self._finish(False, "refused, nothing has changed", answer["problems"], now_ns)
            return
        config = Config.model_validate(answer["config"])
        self._next = self._host.new_generation(config, take_plans(check))
        self._power = answer["power"]
        try:
            self._notes = self._host.prepare(config)
        except EndpointError as error:
            self._finish(False, "refused, nothing has changed", [str(error)], now_ns)
            return
        self._deadline_ns = now_ns + int(config.engine.ready_timeout_s * 1e9)
        self._next.start(now_ns)

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
        self.result = result if not problems else f"{result}: {problems[0]}"
        log.log(logging.INFO if ok else logging.ERROR, "reload: %s", self.result)
        replies, self._replies = self._replies, []
        for reply in replies:
            reply({"ok": ok, "result": result, "problems": problems, "notes": self._notes if ok else []})
        self._host.reload_ended(self.result)
        if self._wanted_again:
            self._wanted_again = False
            self._replies, self._again = self._again, []
            self._begin(now_ns)
