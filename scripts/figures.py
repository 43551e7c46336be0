"""How benches print figures: a median with its spread, and the machine that it was measured on."""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Sequence


def spread(values: Sequence[float], digits: int = 2) -> str:
    """'median (low-high)' of the middle 80 % of the values."""
    ordered = sorted(values)
    cut = len(ordered) // 10
    low, high = ordered[cut], ordered[len(ordered) - 1 - cut]
    return f"{statistics.median(ordered):.{digits}f} ({low:.{digits}f}-{high:.{digits}f})"


def machine() -> str:
    """One line on the machine and how busy it is: absolute times mean little where others work too."""
    load = " ".join(f"{x:.1f}" for x in os.getloadavg())
    return f"{os.cpu_count()} CPUs ({os.uname().machine}), load average {load}, Python {sys.version.split()[0]}"
