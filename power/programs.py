"""Runs the board's own programs, by fixed paths, as root: nothing on their standard input, a time-out, last words kept.

Used by mode_switch.py and fan_profile.py. Invariants: no shell; the path is one of PROGRAMS below the board's root;
output goes to a file, so that nothing a program leaves behind can hold us; it has a session of its own, so that Ctrl-C
and a terminal that is closed do not end it in the middle.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass

from .errors import PowerError
from .sysfs import Sysfs

PROGRAMS = {"nvpmodel": "usr/sbin/nvpmodel", "nvfancontrol": "usr/sbin/nvfancontrol", "systemctl": "usr/bin/systemctl"}
_WORDS_MAX = 600  # of what a program said last


@dataclass(frozen=True, slots=True)
class Ran:
    """How a program ended: its exit code (None: out of time, killed) and its last words."""

    code: int | None
    words: str

    def end(self, timeout_s: float) -> str:
        """In words."""
        ended = f"was killed after {timeout_s:g} s" if self.code is None else f"ended with {self.code}"
        return f"{ended}{f' and said: {self.words}' if self.words else ''}"


def run(sysfs: Sysfs, name: str, arguments: Sequence[str], timeout_s: float) -> Ran:
    """Raises PowerError where it cannot be run."""
    program = sysfs.root / PROGRAMS[name]
    try:
        with tempfile.TemporaryFile() as output:
            code: int | None
            try:
                code = subprocess.run([str(program), *arguments], stdin=subprocess.DEVNULL, stdout=output,
                                      stderr=subprocess.STDOUT, timeout=timeout_s, check=False,
                                      start_new_session=True).returncode
            except subprocess.TimeoutExpired:
                code = None
            output.seek(max(0, output.seek(0, 2) - _WORDS_MAX))
            text = output.read(_WORDS_MAX).decode("utf-8", "replace")
    except OSError as error:  # of the program, or of the folder for temporary files
        raise PowerError(f"{program} cannot be run: {error.strerror or error}") from error
    return Ran(code, " | ".join("".join(c for c in line if c.isprintable()) for line in text.splitlines() if line))
