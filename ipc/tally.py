"""What came back for the files that `orind publish` sent: a line each, and in the end sums with the reasons grouped.

Used by `publish.py`. Invariant: bounded: it knows the files of the newest FILES_MAX frames that are unanswered, and
REASONS_MAX reasons.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from .result_text import result_line
from .wire import Result

GOOD = ("ok", "degraded")
FILES_MAX, REASONS_MAX, REASONS_SHOWN, FILES_SHOWN = 4096, 256, 10, 3


@dataclass
class _Group:
    """Answers with one outcome and reason. `files`: the first of them."""

    count: int = 0
    files: list[str] = field(default_factory=list)


class Tally:
    """`quiet`: the sums only."""

    def __init__(self, quiet: bool) -> None:
        self.outcomes: Counter[str] = Counter()
        self._quiet = quiet
        self._files: dict[int, str] = {}
        self._groups: dict[tuple[str, str], _Group] = {}

    @property
    def poor(self) -> int:
        """Answers that are neither ok nor degraded."""
        return sum(count for outcome, count in self.outcomes.items() if outcome not in GOOD)

    def sent(self, seq: int, file: str) -> None:
        self._files[seq] = file
        if len(self._files) > FILES_MAX:
            del self._files[next(iter(self._files))]

    def take(self, results: Iterable[Result]) -> None:
        for result in results:
            file = self._files.pop(result.seq, "?") if result.seq is not None else "?"
            self.outcomes[result.outcome] += 1
            if result.outcome not in GOOD:
                self._group(result.outcome, result.reason or "without a reason", file)
            if not self._quiet:
                print(f"{file}: {result_line(result)}", flush=True)

    def outcomes_in_words(self) -> str:
        return ", ".join(f"{n} {outcome}" for outcome, n in sorted(self.outcomes.items())) or "none"

    def reasons(self) -> list[str]:
        """Of the answers that are neither ok nor degraded, the most frequent first."""
        groups = sorted(self._groups.items(), key=lambda item: -item[1].count)
        lines = []
        for (outcome, reason), group in groups[:REASONS_SHOWN]:
            more = ", ..." if group.count > len(group.files) else ""
            lines.append(f"{group.count} {outcome}: {reason} ({', '.join(group.files)}{more})")
        if rest := self.poor - sum(group.count for _, group in groups[:REASONS_SHOWN]):
            lines.append(f"{rest} for other reasons")
        return lines

    def name_of(self, seq: int) -> str:
        """A frame without an answer."""
        return f"{seq} ({self._files[seq]})" if seq in self._files else str(seq)

    def _group(self, outcome: str, reason: str, file: str) -> None:
        key = (outcome, reason)
        if key not in self._groups and len(self._groups) >= REASONS_MAX:
            return
        group = self._groups.setdefault(key, _Group())
        group.count += 1
        if len(group.files) < FILES_SHOWN and file not in group.files:
            group.files.append(file)
