"""The cameras of a soak that behave: steady senders of three patterns, and the listener that hears every result.

Called by `soak.py`. What they sent and what was answered is kept whole, so that every trigger can be accounted for.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hostile import Key
from numpy.typing import NDArray

from orind.ipc.client import Publisher, Subscriber

FLUSH_S = 10.0


@dataclass(frozen=True)
class Seen:
    """A result as it was published."""

    at_s: float
    key: tuple[str | None, int | None, int | None]
    outcome: str
    reason: str
    total_ms: float


class SteadyCamera(threading.Thread):
    """One camera at a rate, with a little jitter, until `stop`. `anew` makes it close its socket and open another."""

    def __init__(
        self, name: str, endpoint: str, pattern: str, frames: Sequence[NDArray[Any] | bytes], encoding: str,
        rate_hz: float, seed: int,
    ) -> None:
        super().__init__(name=f"camera {name}", daemon=True)
        self.camera, self.pattern = name, pattern
        self.sent: list[Key] = []
        self.replies: Counter[Key] = Counter()
        self.surplus = 0
        self.error = ""
        self._endpoint, self._frames, self._encoding, self._rate_hz = endpoint, frames, encoding, rate_hz
        self._chance = random.Random(seed)
        self._over, self._anew = threading.Event(), threading.Event()

    def anew(self) -> None:
        self._anew.set()

    def stop(self) -> None:
        self._over.set()
        self.join(4 * FLUSH_S)
        if self.is_alive():
            self.error = self.error or "it does not end"

    def run(self) -> None:
        try:
            while not self._over.is_set():
                self._anew.clear()
                with Publisher(
                    self._endpoint, self.camera, self.pattern, max_outstanding=1000, resend_after_s=600,
                    give_up_after_s=600, linger_s=FLUSH_S,
                ) as publisher:
                    self._send(publisher)
        except Exception as error:  # noqa: BLE001 whatever it is, the soak's verdict names it
            self.error = f"{type(error).__name__}: {error}"

    def _send(self, publisher: Publisher) -> None:
        due_s = time.monotonic()
        while not self._over.is_set() and not self._anew.is_set():
            seq, stamp = len(self.sent), time.monotonic_ns()
            publisher.send(self._frames[seq % len(self._frames)], self._encoding, seq=seq, ts_ns=stamp)
            self.sent.append((self.camera, seq, stamp))
            due_s = max(due_s + self._chance.uniform(0.8, 1.2) / self._rate_hz, time.monotonic())
            self._take(publisher, due_s)
        end_s = time.monotonic() + FLUSH_S
        while publisher.outstanding and time.monotonic() < end_s:
            self._take(publisher, min(end_s, time.monotonic() + 0.05))
        self.surplus += publisher.duplicates + publisher.malformed

    def _take(self, publisher: Publisher, until_s: float) -> None:
        while (left_s := until_s - time.monotonic()) > 0:
            if publisher.outstanding:
                for result in publisher.poll(left_s):
                    assert result.camera is not None and result.seq is not None and result.ts_ns is not None
                    self.replies[(result.camera, result.seq, result.ts_ns)] += 1
            else:
                self._over.wait(left_s)
                if self._over.is_set():
                    return


class Listener(threading.Thread):
    """Hears every result from `begin` on."""

    def __init__(self, endpoint: str, began_s: float) -> None:
        super().__init__(name="listener", daemon=True)
        self.seen: list[Seen] = []
        self.repeated = 0
        self._subscriber = Subscriber(endpoint, hwm=1_000_000)
        self._began_s = began_s
        self._over = threading.Event()

    def run(self) -> None:
        with self._subscriber as subscriber:
            while not self._over.is_set():
                result = subscriber.receive(0.1)
                if result is None:
                    continue
                if result.repeated:
                    self.repeated += 1
                    continue
                key = (result.camera, result.seq, result.ts_ns)
                at_s, total_ms = time.monotonic() - self._began_s, result.latency_ms.get("total", 0.0)
                self.seen.append(Seen(at_s, key, result.outcome, result.reason or "", total_ms))

    def stop(self) -> None:
        self._over.set()
        self.join(10)
