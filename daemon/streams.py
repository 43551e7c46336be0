"""The command line's stdout and stderr: that they cannot be written is told apart from every other fault of the disk.

Caller: `cli.py`. Invariant: a full disk behind `orind inspect PLAN > FILE` is one sentence and Exit.FAILED, not a
traceback; a reader that has gone stays a BrokenPipeError.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO, cast


class StreamFault(Exception):
    """The stream `name` took no more; the text says why. Not an OSError: those have handlers with other meanings."""

    def __init__(self, name: str, error: OSError) -> None:
        super().__init__(error.strerror or str(error))
        self.name = name


class _Watched:
    """A text stream whose write and flush raise StreamFault."""

    def __init__(self, stream: TextIO, name: str) -> None:
        self._stream = stream
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise StreamFault(self._name, error) from error

    def flush(self) -> None:
        if self._stream.closed:
            return
        try:
            self._stream.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise StreamFault(self._name, error) from error


class Streams:
    def __init__(self, out: TextIO, err: TextIO) -> None:
        self.out, self.err = out, err

    def flush(self) -> None:
        """Raises StreamFault: what the buffer holds is not written before."""
        sys.stdout.flush()
        sys.stderr.flush()

    def give_up(self, fault: StreamFault) -> None:
        """Says so where that is possible; the interpreter's own flush at its end then has nothing to stumble over."""
        if fault.name == "stdout":
            with suppress(OSError):
                print(f"orind: stdout cannot be written: {fault}", file=self.err, flush=True)
        for stream in (self.out, self.err):
            try:
                stream.flush()
            except OSError:
                with suppress(OSError):
                    stream.close()                     # tries once more, fails, and is closed


@contextmanager
def watched_streams() -> Iterator[Streams]:
    """stdout and stderr are watched inside the block."""
    before = sys.stdout, sys.stderr
    # None: closed by the caller (`>&-`); then what stands there is a stream that refuses to be written
    with open(os.devnull, encoding="utf-8") as closed:
        out, err = (closed if stream is None else stream for stream in before)
        sys.stdout, sys.stderr = cast(TextIO, _Watched(out, "stdout")), cast(TextIO, _Watched(err, "stderr"))
        try:
            yield Streams(out, err)
        finally:
            sys.stdout, sys.stderr = before
