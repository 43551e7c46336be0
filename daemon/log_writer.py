"""Log lines go to stderr through a thread: a reader of stderr that stalls must not stop the loop that moves frames.

Installed by `serve.py`, for main only. Invariant: main never waits for stderr; of lines that find no room the number is
said as soon as there is room again.
"""

from __future__ import annotations

import logging
import os
import queue
import threading

LINES_MAX = 4096
END_WAIT_S = 1.0


class LogWriter(logging.Handler):
    """Formats in the caller, writes in a thread of its own. `close` waits END_WAIT_S at most for what is left."""

    def __init__(self, fd: int) -> None:
        super().__init__()
        self._fd = fd
        self._lines: queue.Queue[str | None] = queue.Queue(LINES_MAX)
        self._lost = 0
        self._thread = threading.Thread(target=self._write, name="log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = self.format(record)
            if self._lost:
                self._lines.put_nowait(f"WARNING {self._lost} log lines were lost: nobody read them in time")
                self._lost = 0
            self._lines.put_nowait(text)
        except queue.Full:
            self._lost += 1

    def close(self) -> None:
        try:
            self._lines.put_nowait(None)
            self._thread.join(END_WAIT_S)
        except queue.Full:
            pass  # whoever does not read now will not read this either
        super().close()

    def _write(self) -> None:
        while (line := self._lines.get()) is not None:
            data = f"{line}\n".encode(errors="backslashreplace")
            try:
                while data:
                    data = data[os.write(self._fd, data) :]
            except OSError:
                return  # stderr is gone for good; the lines end in the queue
