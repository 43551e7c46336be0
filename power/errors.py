"""The exceptions of the power package, from which every caller can tell a bad file from a bad board.

Raised by all modules of `power`; the daemon turns SettingsError into configuration errors and logs the others.
Invariant: a message names the path or key and what to do, and a failed read is never turned into a number.
"""

from __future__ import annotations

from dataclasses import dataclass

PROBLEMS_MAX = 20  # of one file that are told to a person


class PowerError(Exception):
    """Anything that power could not do; the text is for a person."""


class SysfsError(PowerError):
    """A file of the board could not be read or written. `path` is relative to the root, `why` a few words."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"/{path}: {why}")
        self.path = path
        self.why = why


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong in a settings mapping: `where` is the key path, such as ("modes", 2, "id")."""

    where: tuple[str | int, ...]
    text: str

    @property
    def key(self) -> str:
        """The key path in words: modes[2].id."""
        path = ""
        for part in self.where:
            path += f"[{part}]" if isinstance(part, int) else (f".{part}" if path else part)
        return path

    def __str__(self) -> str:
        return f"{self.key}: {self.text}" if self.where else self.text


class SettingsError(PowerError):
    """A board or policy mapping was refused; `problems` holds everything that is wrong with it, not only the first."""

    def __init__(self, what: str, problems: tuple[Problem, ...]) -> None:
        super().__init__(f"{what}: " + "; ".join(str(p) for p in problems))
        self.what = what
        self.problems = problems


class ConfError(PowerError):
    """The board's nvpmodel.conf was refused; `problems` holds all that is wrong: line (0: the whole file), what."""

    def __init__(self, file: str, problems: tuple[tuple[int, str], ...]) -> None:
        self.file = file
        self.problems = problems
        super().__init__("; ".join(self.lines()))

    def lines(self) -> list[str]:
        """One for each problem: FILE:LINE: what; at most PROBLEMS_MAX, then how many more there are."""
        found = [f"{self.file}:{line}: {what}" if line else f"{self.file}: {what}"
                 for line, what in self.problems[:PROBLEMS_MAX]]
        more = len(self.problems) - PROBLEMS_MAX
        return [*found, f"and {more} more"] if more > 0 else found
