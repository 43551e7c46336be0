"""Latency histogram with logarithmic buckets: cheap to add to, mergeable, quantiles within a sixteenth.

Main adds one number per stage and frame; the HTTP process and `orind status` read quantiles from the stats page.
Invariant: a value lies in a bucket whose width is at most 1/16 of its lower edge, and nothing is ever lost: values
beyond the range count in the last bucket.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SUB_BITS = 4  # 16 buckets per power of two
SUB = 1 << SUB_BITS
MAX_NS = (1 << 42) - 1  # 73 minutes
BUCKETS = ((42 - SUB_BITS - 1) << SUB_BITS) + 2 * SUB


def bucket_of(ns: int) -> int:
    """Index of the bucket that holds ns (0 to MAX_NS). Below 16 a bucket is one nanosecond wide."""
    shift = ns.bit_length() - SUB_BITS - 1
    return ns if shift <= 0 else (shift << SUB_BITS) + (ns >> shift)


def edges_ns(bucket: int) -> tuple[int, int]:
    """(lowest ns that lies in it, lowest ns that lies above it)."""
    if bucket < 2 * SUB:
        return bucket, bucket + 1
    shift = (bucket >> SUB_BITS) - 1
    low = (bucket - (shift << SUB_BITS)) << shift
    return low, low + (1 << shift)


class Histogram:
    """Counts of durations in nanoseconds."""

    __slots__ = ("_counts", "count", "max_ns", "sum_ns")

    def __init__(self) -> None:
        self._counts = [0] * BUCKETS
        self.count = 0
        self.sum_ns = 0
        self.max_ns = 0

    def add(self, ns: int) -> None:
        """One duration; a negative one (clocks of two stamps disagree) counts as 0."""
        if ns < 0:
            ns = 0
        elif ns > MAX_NS:
            ns = MAX_NS
        shift = ns.bit_length() - 5  # bucket_of, written out: a call would double the cost
        self._counts[ns if shift <= 0 else (shift << 4) + (ns >> shift)] += 1
        self.count += 1
        self.sum_ns += ns
        if ns > self.max_ns:
            self.max_ns = ns

    def quantile(self, p: float) -> float | None:
        """The p-quantile in ns (0 <= p <= 1), interpolated within its bucket; None when nothing was added."""
        if not 0 <= p <= 1:
            raise ValueError(f"quantile {p}: between 0 and 1")
        if not self.count:
            return None
        rank = p * (self.count - 1)  # numpy's linear definition: the value at this fractional position
        seen = 0
        for bucket, n in enumerate(self._counts):
            if n and rank < seen + n:
                low, high = edges_ns(bucket)
                return min(low + (high - low) * (rank - seen + 0.5) / n, float(self.max_ns))
            seen += n
        return float(self.max_ns)

    def cumulative(self, bounds_ns: list[int]) -> list[int]:
        """How many values are <= each bound, as Prometheus wants them, to the nearest lower bucket edge."""
        return [sum(self._counts[: bucket_of(max(0, min(bound, MAX_NS)) + 1)]) for bound in bounds_ns]

    def to_json(self) -> dict[str, Any]:
        """Sparse: {"count", "sum_ns", "max_ns", "buckets": {index: n}}."""
        buckets = {str(i): n for i, n in enumerate(self._counts) if n}
        return {"count": self.count, "sum_ns": self.sum_ns, "max_ns": self.max_ns, "buckets": buckets}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Histogram:
        """Raises ValueError for anything that to_json did not make."""
        made = cls()
        try:
            for index, n in fields["buckets"].items():
                if not 0 <= int(index) < BUCKETS or type(n) is not int or n < 0:
                    raise ValueError(f"bucket {index}: {n}")
                made._counts[int(index)] = n
            made.count, made.sum_ns, made.max_ns = (int(fields[name]) for name in ("count", "sum_ns", "max_ns"))
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a histogram: {error!r}") from None
        if made.count != sum(made._counts):
            raise ValueError(f"not a histogram: {made.count} values announced, {sum(made._counts)} in buckets")
        return made
