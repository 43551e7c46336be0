"""The sensors of `power.source: jtop`: a reader in a process of its own, whose lines become readings.

Used by steward.py in the place of Sensors. The reader (power/readers/jtop_reader.py) runs with the interpreter that the
configuration names, since jetson-stats is AGPL-3.0 and no package of ours. Invariants: `read` never waits and never
raises; a reader that ended, is silent or says nonsense means lost sensors, with the reason, and is started anew, ever
more rarely and never beside one that has not gone yet; it ends with the steward, whose end closes its standard input.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ..ipc.bounded_text import bound_text
from ..power.board import BoardFacts
from ..power.errors import PowerError
from ..power.jtop_readings import INTERVAL_S, JtopSample, parse, readings_of
from ..power.sensors import Readings
from .respawn import Respawn

READER = Path(__file__).resolve().parent.parent / "power" / "readers" / "jtop_reader.py"
AGAIN_NS = 1_000_000_000
SILENT_NS = 5_000_000_000  # from start to the first sample a slow board takes two seconds
LINE_BYTES_MAX = 1 << 16
READ_BYTES_MAX = 1 << 20  # of one tick: far more than a reader sends in it
FIRST_SAMPLE_S = 3.0
END_S = 0.5
# nothing of ours is for the reader: no PYTHONPATH, no settings of libraries
ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}


class JtopSource:
    """`read` as Sensors.read; `close` ends the reader."""

    def __init__(self, python: str, facts: BoardFacts, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._command = [python, str(READER), str(INTERVAL_S)]
        self._facts = facts
        self._clock = clock
        self._respawn = Respawn(AGAIN_NS)
        self._reader: subprocess.Popen[bytes] | None = None
        self._killed: subprocess.Popen[bytes] | None = None  # until the kernel has let it go
        self._rest = b""
        self._heard_ns = 0
        self._sample: JtopSample | None = None
        self._start(clock())

    def wait_for_first(self) -> None:
        """At the start: until the reader has said something, or ended, for a few seconds. Whoever obeys us holds its
        lowest pacing meanwhile, and a governor without readings would take the board for hot."""
        end_ns = self._clock() + round(FIRST_SAMPLE_S * 1e9)
        while self._sample is None and self._reader is not None and (left_ns := end_ns - self._clock()) > 0:
            assert self._reader.stdout is not None
            select.select([self._reader.stdout], [], [], left_ns / 1e9)
            self._receive(self._clock())

    def read(self) -> Readings:
        """What the last sample says, if it is a fresh one."""
        now_ns = self._clock()
        if self._killed is not None and self._killed.poll() is not None:
            self._killed = None
        if self._reader is None and self._killed is None and self._respawn.due(now_ns):
            self._start(now_ns)
        self._receive(now_ns)
        if self._reader is not None and now_ns - self._heard_ns > SILENT_NS:
            self._end(f"the reader has been silent for {SILENT_NS / 1e9:.0f} s and is replaced")
        readings = readings_of(self._sample, self._facts, now_ns)
        if readings.board_mw is None and self._respawn.problem:
            readings = replace(readings, faults=(*readings.faults, f"jtop: {self._respawn.problem}"))
        return readings

    def close(self) -> None:
        """End the reader and wait for it."""
        if self._reader is not None:
            self._end("")
        if self._killed is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):  # held by the kernel; it is no child for long
                self._killed.wait(END_S)

    def _start(self, now_ns: int) -> None:
        self._rest, self._heard_ns = b"", now_ns
        try:
            self._reader = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                            env=ENVIRONMENT, cwd="/")
        except OSError as error:
            self._respawn.failed(now_ns, f"{self._command[0]} cannot be run: {error.strerror}")
            return
        assert self._reader.stdout is not None
        os.set_blocking(self._reader.stdout.fileno(), False)

    def _receive(self, now_ns: int) -> None:
        """All that has come; the last line counts."""
        if self._reader is None:
            return
        assert self._reader.stdout is not None
        data, ended = self._rest, False
        while len(data) < READ_BYTES_MAX:
            try:
                more = os.read(self._reader.stdout.fileno(), LINE_BYTES_MAX)
            except BlockingIOError:
                break
            if not more:
                ended = True
                break
            data += more
        *lines, self._rest = data.split(b"\n")
        try:
            if lines:
                self._heard_ns = now_ns
                self._sample = parse(lines[-1])
                self._respawn.served()
            if len(self._rest) > LINE_BYTES_MAX:
                raise PowerError(f"a line of more than {LINE_BYTES_MAX} bytes is no sample")
        except PowerError as error:
            self._end(str(error))
            return
        if ended:
            self._end("the reader has ended")

    def _end(self, why: str) -> None:
        """Kill it; later looks find it gone. The last sample stays: while it is fresh it is true."""
        reader, self._reader = self._reader, None
        assert reader is not None and reader.stdin is not None and reader.stdout is not None
        with contextlib.suppress(OSError):
            reader.stdin.close()
        reader.stdout.close()
        reader.kill()
        self._killed = reader
        self._respawn.failed(self._clock(), bound_text(why))
