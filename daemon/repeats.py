"""Triggers that come again: they wait for the one in flight, or get its answer once more.

Owned by `pipeline.py`. Invariant: a repeat gets the outcome that its trigger has or will have, or nothing at all; never
another one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..ipc.answer import mark_repeated
from ..ipc.identity import Entry, Identities
from .ledger import Ledger
from .trigger import Trigger

STORED_ANSWER_BYTES = 16 * 1024


class Repeats:
    """Identities of recent triggers, with their answers."""

    def __init__(self, ledger: Ledger, publish: Callable[[list[bytes]], None]) -> None:
        self._identities = Identities()
        self._ledger = ledger
        self._publish = publish

    def known(self, frame: Trigger) -> bool:
        """Whether this trigger came before; then it is taken care of here."""
        assert frame.seq is not None
        entry, new = self._identities.claim(frame.camera, frame.trigger, frame.seq, frame.ts_ns)
        if new:
            frame.entry = entry
            return False
        self._ledger.repeated += 1
        if entry.answer is not None:
            self._answer(frame, mark_repeated(entry.answer))
        elif not self._identities.attach(entry, frame):
            self._ledger.repeats_unanswered += 1  # its sender asks again, or has 64 answers on their way already
        return True

    def finished(self, frame: Trigger, parts: Sequence[bytes], brief: Callable[[], list[bytes]]) -> None:
        """Keep the answer and give it to the repeats that wait. `brief` makes what is kept of one that is too large."""
        entry: Entry | None = frame.entry
        if entry is None:
            return
        frame.entry = None
        waiting: list[Any] = self._identities.answer(
            entry, parts if sum(map(len, parts)) <= STORED_ANSWER_BYTES else brief()
        )
        for repeat in waiting:
            self._answer(repeat, mark_repeated(parts))

    def forget(self, camera: str) -> None:
        self._identities.forget(camera)

    def reply(self, frame: Trigger, parts: list[bytes]) -> None:
        """To the frame's sender, where it can be replied to."""
        if frame.envelope and frame.source is not None and not frame.source.reply(frame.envelope, parts):
            self._ledger.unroutable += 1

    def _answer(self, frame: Trigger, parts: list[bytes]) -> None:
        """To its sender where it can be replied to, else on the results socket."""
        if frame.envelope:
            self.reply(frame, parts)
        else:
            self._publish(parts)
