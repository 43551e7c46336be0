"""Which frames were seen before: per camera the last 4,096 identities, each in flight or answered.

Main asks once per frame. Invariant: what makes a client's re-send safe: a frame whose identity (camera, trigger or seq,
ts_ns) is remembered is never run a second time, it gets the first one's outcome. A frame without ts_ns has no identity:
a counter that restarted with the camera would otherwise be answered with last week's part.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

WINDOW = 4096


class Entry:
    """One remembered frame. In flight until `answer` is set; `waiting` are repeats to be answered with it."""

    __slots__ = ("answer", "waiting")

    def __init__(self) -> None:
        self.answer: Sequence[bytes] | None = None
        self.waiting: list[Any] = []


class Identities:
    """Recent frames of every camera. Cameras are the configured ones, so their number needs no bound of its own."""

    def __init__(self, window: int = WINDOW, waiting_max: int = 64) -> None:
        if window < 1:
            raise ValueError(f"window {window}: at least 1")
        self.window = window
        self.waiting_max = waiting_max
        self._cameras: dict[str, OrderedDict[tuple[str | int, int], Entry]] = {}

    def claim(self, camera: str, trigger: str | None, seq: int, ts_ns: int | None) -> tuple[Entry, bool]:
        """(entry, new). new: run it, and set entry.answer when its outcome is out. Not new and entry.answer is None:
        it is in flight, attach to entry.waiting. Otherwise entry.answer is to be sent again, marked repeated.
        """
        if ts_ns is None:
            return Entry(), True
        recent = self._cameras.get(camera)
        if recent is None:
            recent = self._cameras[camera] = OrderedDict()
        key = (seq if trigger is None else trigger, ts_ns)
        entry = recent.get(key)
        if entry is not None:
            return entry, False
        if len(recent) >= self.window:
            recent.popitem(last=False)  # the oldest; a frame still in flight keeps its own reference to its entry
        entry = recent[key] = Entry()
        return entry, True

    def attach(self, entry: Entry, who: Any) -> bool:
        """Note a repeat of a frame in flight. False when too many wait already: it gets no answer of its own."""
        if len(entry.waiting) >= self.waiting_max:
            return False
        entry.waiting.append(who)
        return True

    @staticmethod
    def answer(entry: Entry, parts: Sequence[bytes]) -> list[Any]:
        """Keep the outcome for repeats to come; -> those that wait for it now."""
        entry.answer = parts
        waiting, entry.waiting = entry.waiting, []
        return waiting

    def forget(self, camera: str) -> None:
        """A camera left the configuration."""
        self._cameras.pop(camera, None)

    def __len__(self) -> int:
        return sum(len(recent) for recent in self._cameras.values())
