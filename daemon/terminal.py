"""What commands, the demo and the benches print: tables with aligned columns and small plots in the terminal."""

from __future__ import annotations

from collections.abc import Sequence

BLOCKS = " ▁▂▃▄▅▆▇█"


def table(head: Sequence[str], rows: Sequence[Sequence[object]], left: int = 1) -> list[str]:
    """Lines of a table; the first `left` columns are aligned to the left, the others to the right."""
    cells = [[str(c) for c in row] for row in (head, *rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    lines = [
        "  ".join(
            c.ljust(w) if i < left else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]
    return [lines[0], "-" * max(map(len, lines)), *lines[1:]]


def plot(title: str, unit: str, values: Sequence[float | None], width: int = 72, height: int = 6) -> list[str]:
    """A plot of values over time, oldest left; None leaves a gap."""
    known = [v for v in values if v is not None]
    if not known:
        return [f"{title}: no readings"]
    low, high = min(known), max(known)
    span = (high - low) or 1.0
    columns = _resample(values, width)
    lines = [f"{title}, {unit}"]
    for row in range(height - 1, -1, -1):
        line = ""
        for value in columns:
            level = -1.0 if value is None else (value - low) / span * (height * 8 - 1) + 1 - row * 8
            line += BLOCKS[max(0, min(8, int(level)))]
        mark = f"{low + span * (row + 1) / height:7.1f} |" if row in (height - 1, 0) else "        |"
        if row == 0:
            mark = f"{low:7.1f} |"
        lines.append(mark + line)
    return lines


def _resample(values: Sequence[float | None], width: int) -> list[float | None]:
    """At most `width` columns, each the mean of its share of the values."""
    count = min(width, len(values))
    columns: list[float | None] = []
    for i in range(count):
        part = [v for v in values[i * len(values) // count : (i + 1) * len(values) // count] if v is not None]
        columns.append(sum(part) / len(part) if part else None)
    return columns
