"""Signals as bytes in the poller: handlers only enqueue, the loop acts.

Installed by `orind serve` before its heavy imports, because the default action of SIGUSR2 is death.
"""

from __future__ import annotations

import os
import signal
from typing import ClassVar

HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2, signal.SIGHUP)


class SignalInbox:
    """`fd` becomes readable when a signal came; `take` says which, each once, in order of arrival."""

    _installed: ClassVar[SignalInbox | None] = None

    @classmethod
    def install_early(cls) -> SignalInbox:
        """The process's inbox, installed at the first call."""
        if cls._installed is None:
            cls._installed = cls()
        return cls._installed

    def __init__(self) -> None:
        self.fd, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        for number in HANDLED:
            signal.signal(number, _nothing)
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)

    def take(self) -> list[signal.Signals]:
        try:
            raw = os.read(self.fd, 512)
        except BlockingIOError:
            return []
        return [signal.Signals(n) for n in dict.fromkeys(raw) if n in HANDLED]

    def close(self) -> None:
        signal.set_wakeup_fd(-1)
        type(self)._installed = None
        os.close(self.fd)
        os.close(self._write)


def _nothing(number: int, frame: object) -> None:
    """The interpreter writes the number into the pipe; a Python handler only has to exist."""
