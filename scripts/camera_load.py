"""A camera that sends frames to a harness.Service and keeps every answer with its time.

Times are CLOCK_MONOTONIC, as in the daemon's records.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from harness import Service, ServiceError
from numpy.typing import NDArray

from orind.ipc.client import Publisher, Result

LOOK_S = 0.05  # how often a load that sends nothing by itself looks whether it is to change


@dataclass(frozen=True, slots=True)
class Sent:
    """A frame and when it left, CLOCK_MONOTONIC ns."""

    seq: int
    at_ns: int


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer and when it was here, CLOCK_MONOTONIC ns."""

    at_ns: int
    result: Result


class Load(threading.Thread):
    """Sends frames of one camera at a steady rate (DEALER) and keeps every answer with its time. `change` alters it.

    Runs from `with` entry (or start()) to stop(), which waits for what is unanswered and raises what went wrong.
    """

    def __init__(
        self,
        service: Service,
        frames: Sequence[NDArray[Any] | bytes],
        rate_hz: float = 40.0,
        camera: str = "line1",
        encoding: str | None = None,
        wait_s: float = 20.0,
    ) -> None:
        """rate_hz: 0 for none yet. encoding: as in Publisher.send. wait_s: how long stop() waits for answers."""
        super().__init__(name=f"load {camera}", daemon=True)
        self.sent: list[Sent] = []
        self.answers: list[Answered] = []
        self.duplicates = 0
        self.period_ns = int(1e9 / rate_hz) if rate_hz else 0
        self._window = 0
        self._service, self._frames, self._camera, self._encoding = service, frames, camera, encoding
        self._wait_s = wait_s
        self._error: BaseException | None = None
        self._stopping = threading.Event()
        self._news = threading.Condition()

    def run(self) -> None:
        try:
            with self._service.client(self._camera) as client:
                self._send_all(client)
                self._collect(client, self._wait_s, until=0)
                self.duplicates = client.duplicates + client.malformed
        except BaseException as error:  # noqa: BLE001 whatever it is: stop() raises it in the caller's thread
            self._error = error
        with self._news:
            self._news.notify_all()

    def change(self, rate_hz: float = 0.0, window: int = 0) -> None:
        """From now on frames leave at `rate_hz`, or as answers come, with `window` unanswered; without either none."""
        self.period_ns, self._window = int(1e9 / rate_hz) if rate_hz else 0, window

    def _send_all(self, client: Publisher) -> None:
        due_ns = time.monotonic_ns()
        while not self._stopping.is_set():
            period_ns, window = self.period_ns, self._window
            if window and client.outstanding >= window:
                self._collect(client, LOOK_S, until=window - 1)
                continue
            if not window and not period_ns:
                self._collect(client, LOOK_S)
                due_ns = time.monotonic_ns()
                continue
            client.send(self._frames[len(self.sent) % len(self._frames)], self._encoding)
            with self._news:
                self.sent.append(Sent(len(self.sent), time.monotonic_ns()))
                self._news.notify_all()
            due_ns = due_ns + period_ns if period_ns else time.monotonic_ns()
            self._collect(client, (due_ns - time.monotonic_ns()) / 1e9)

    def _collect(self, client: Publisher, timeout_s: float, until: int | None = None) -> None:
        """Take answers for timeout_s, or until so few are awaited."""
        end = time.monotonic() + timeout_s
        while True:
            left = end - time.monotonic()
            for result in client.poll(max(0.0, left) if client.outstanding else 0.0):
                self.answers.append(Answered(time.monotonic_ns(), result))
            if left <= 0 or (until is not None and client.outstanding <= until):
                return
            if not client.outstanding:
                self._stopping.wait(max(0.0, end - time.monotonic()))

    def next_sent(self, timeout_s: float = 10.0) -> Sent:
        """Wait for the next frame to leave."""
        with self._news:
            count = len(self.sent)
            if not self._news.wait_for(lambda: len(self.sent) > count or self._error, timeout_s) or self._error:
                raise ServiceError(f"no frame left within {timeout_s:g} s") from self._error
            return self.sent[-1]

    def stop(self) -> None:
        """Send no more, wait for the answers. Raises ServiceError with what the thread failed at."""
        self._stopping.set()
        self.join(self._wait_s + 10.0)
        if self._error is not None or self.is_alive():
            raise ServiceError(f"the load on {self._camera} failed: {self._error}") from self._error

    def __enter__(self) -> Load:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self.join(self._wait_s + 10.0)

    # -- what came of it -----------------------------------------------------------------------------------------

    def lost(self) -> list[int]:
        """seq of every frame without an answer."""
        return sorted({s.seq for s in self.sent} - {a.result.seq for a in self.answers if a.result.seq is not None})

    def surplus(self) -> int:
        """Answers too many: a frame answered twice, an answer that is not ours."""
        seqs = [a.result.seq for a in self.answers]
        return self.duplicates + len(seqs) - len(set(seqs))

    def not_ok(self) -> list[Answered]:
        return [a for a in self.answers if not a.result.ok]

    def largest_gap_ns(self, from_ns: int, to_ns: int) -> int:
        """Largest interval between answers that ends within from_ns..to_ns, less the period of the load."""
        times = [a.at_ns for a in list(self.answers)]
        gaps = [b - a for a, b in itertools.pairwise(times) if from_ns <= b <= to_ns]
        return max(gaps, default=0) - self.period_ns

    def first_answer_after(self, at_ns: int) -> Answered | None:
        return next((a for a in list(self.answers) if a.at_ns > at_ns), None)
