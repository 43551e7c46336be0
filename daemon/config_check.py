"""One run of the checker process: it reads and verifies a whole configuration, so that main parses no YAML.

Used by `serve.py` at the start and by `reloading.py`. Invariant: it ends with one answer, whatever becomes of the
checker; the descriptors that came with it belong to this object until `take` gives them on.
"""

from __future__ import annotations

import json
import os
import socket
from typing import Any

from ..ipc.errors import ChannelError
from ..ipc.fd_passing import recv_with_fds
from .candidate import Candidate
from .config import Config
from .nursery_client import NurseryClient
from .plans import ServedPlan
from .poller import Watcher

CHECK_TIMEOUT_NS = 60_000_000_000


class ConfigCheck:
    """`answer` is None until it has spoken; where it could not, that counts as a shortage: no file is to blame."""

    def __init__(self, nursery: NurseryClient, watcher: Watcher, path: str, now_ns: int) -> None:
        """Raises OSError, IpcError, NurseryDied."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel = ours
        self._watcher = watcher
        self._nursery = nursery
        self._deadline_ns = now_ns + CHECK_TIMEOUT_NS
        self._fds: list[int] = []
        self.answer: dict[str, Any] | None = None
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

    def take(self) -> Candidate:
        """What a good answer says; the plans' descriptors are the candidate's from here on."""
        answer = self.answer
        assert answer is not None and not answer["problems"]
        config = Config.model_validate(answer["config"])
        fds, self._fds = self._fds, []
        plans = [ServedPlan.from_dict(plan, fd) for plan, fd in zip(answer["plans"], fds, strict=True)]
        return Candidate(config, plans, answer["power"])

    def close(self) -> None:
        """Nobody waits for the answer any more."""
        if self.answer is None:
            self._give_up("not waited for")
        for fd in self._fds:
            os.close(fd)
        self._fds = []

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
            blob, *self._fds = message.fds
            with os.fdopen(blob, "rb") as file:
                file.seek(0)
                answer = json.loads(file.read())
        except (ChannelError, OSError, ValueError) as error:
            self._give_up(f"the checker's answer cannot be read: {error}")
            return
        self._end(answer)

    def _fail(self, text: str) -> None:
        if self.answer is None:
            self._end({"problems": [text], "passing": True, "config": None, "power": None, "plans": []})

    def _end(self, answer: dict[str, Any]) -> None:
        self.answer = answer
        self._child.on_failed = None  # it refers to us: a circle would keep every answer, since main hardly collects
        self._watcher.forget(self._channel.fileno())
        self._channel.close()
