"""Progress for a person who waits: one line that is rewritten on a terminal, plain lines elsewhere."""

from __future__ import annotations

import re
import shutil
import sys
import time
from types import TracebackType
from typing import TextIO

COUNT = re.compile(r"(\d+) of (\d+) pictures$")
COUNT_EVERY_S = 30.0


class Progress:
    """Writes to stderr, so that a command's result on stdout stays clean."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._live = self._stream.isatty()
        self._began = self._said_s = time.monotonic()

    def say(self, text: str) -> None:
        """What is being done now; in a log a count of pictures only now and then, and its end."""
        counted, now_s = COUNT.search(text), time.monotonic()
        if not self._live and counted and counted[1] != counted[2] and now_s - self._said_s < COUNT_EVERY_S:
            return
        self._said_s = now_s
        line = f"[{time.monotonic() - self._began:5.1f} s] {text}"
        if self._live:
            width = shutil.get_terminal_size().columns - 1
            self._stream.write(f"\r\x1b[K{line[:width]}")
        else:
            self._stream.write(line + "\n")
        self._stream.flush()

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
