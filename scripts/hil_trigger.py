"""Trigger to result on a wired board: pulses on a GPIO line, which triggers a camera, whose program feeds orind.

Called by hil_run.py. The line is driven through the kernel's character device (libgpiod's Python package, an extra).
Invariant: one pulse is on its way at a time, so that a result belongs to the last pulse or to none; one that belongs to
none (the camera runs freely, or answers twice) is counted and fails the run.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from harness import ServiceError
from hil_figures import Frame

from orind.ipc.client import Result


class Line:
    """An output line, such as "/dev/gpiochip0:144". Use as a context manager: it is left inactive and given back."""

    def __init__(self, wiring: str, pulse_s: float) -> None:
        """Raises ServiceError where there is no such line, or nothing to drive it with."""
        chip, _, number = wiring.rpartition(":")
        try:
            import gpiod
        except ImportError:
            raise ServiceError("GPIO lines need libgpiod's Python package: pip install 'orind[hil]'") from None
        self._active, self._inactive = gpiod.line.Value.ACTIVE, gpiod.line.Value.INACTIVE
        settings = gpiod.LineSettings(direction=gpiod.line.Direction.OUTPUT, output_value=self._inactive)
        self._number, self._pulse_s = int(number), pulse_s
        try:
            self._request: Any = gpiod.request_lines(chip, consumer="orind-hil", config={self._number: settings})
        except (OSError, ValueError) as error:
            raise ServiceError(f"GPIO line {wiring} cannot be driven: {error}; gpioinfo lists the lines") from error

    def pulse(self) -> int:
        """-> CLOCK_MONOTONIC ns just before the line became active."""
        at_ns = time.monotonic_ns()
        self._request.set_value(self._number, self._active)
        time.sleep(self._pulse_s)
        self._request.set_value(self._number, self._inactive)
        return at_ns

    def __enter__(self) -> Line:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._request.set_value(self._number, self._inactive)
        finally:
            self._request.release()


class Pulses(threading.Thread):
    """Pulses at a period until stop(), and what came of each. `receive(timeout_s)`: the next result of the camera."""

    def __init__(self, camera: str, pulse: Callable[[], int], receive: Callable[[float], Result | None],
                 period_s: float, began_s: float) -> None:
        super().__init__(name="pulses", daemon=True)
        self.frames: list[Frame] = []
        self.surplus = 0
        self.error = ""
        self._camera, self._pulse, self._receive, self._period_s = camera, pulse, receive, period_s
        self._began_s = began_s
        self._over = threading.Event()

    def run(self) -> None:
        try:
            while self._receive(0.0) is not None:
                self.surplus += 1  # before the first pulse
            due_s = time.monotonic()
            while not self._over.is_set():
                due_s += self._period_s
                self.frames.append(self._one(due_s))
        except Exception as error:  # noqa: BLE001 whatever it is, the report names it
            self.error = f"the pulses ended: {type(error).__name__}: {error}"

    def _one(self, until_s: float) -> Frame:
        """A pulse and its result, if one comes before the next pulse is due."""
        sent_s = self._pulse() / 1e9 - self._began_s
        frame = Frame(self._camera, len(self.frames), sent_s)
        while (left_s := until_s - time.monotonic()) > 0:
            result = self._receive(left_s)
            if result is None:
                continue
            if frame.answered_s is not None:
                self.surplus += 1
                continue
            answered_s = time.monotonic() - self._began_s
            frame = Frame(self._camera, frame.seq, sent_s, answered_s, result.outcome, result.reason or "")
        return frame

    def stop(self) -> None:
        """After the pulse that is on its way."""
        self._over.set()
        self.join(self._period_s + 10.0)
