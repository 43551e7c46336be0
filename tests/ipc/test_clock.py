"""Time stamps: which are believed, which are replaced by the arrival, and that each replacement is counted."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orind.ipc import clock
from orind.ipc.clock import AHEAD_MONOTONIC_NS, AHEAD_REALTIME_NS, Stamp, StampPolicy, interpret

NOW = 10**15
OFFSET = 1_700_000_000 * 10**9
MS = 10**6


@pytest.mark.parametrize(
    ("ts_ns", "kind", "same_host", "expected"),
    [
        (None, "monotonic", True, Stamp(NOW, "arrival", "none")),
        (NOW - 5 * MS, "monotonic", True, Stamp(NOW - 5 * MS, "monotonic", "")),
        (NOW + AHEAD_MONOTONIC_NS, "monotonic", True, Stamp(NOW, "monotonic", "")),
        (NOW + AHEAD_MONOTONIC_NS + 1, "monotonic", True, Stamp(NOW, "arrival", "future")),
        (NOW - clock.AGE_MAX_NS, "monotonic", True, Stamp(NOW - clock.AGE_MAX_NS, "monotonic", "")),
        (NOW - clock.AGE_MAX_NS - 1, "monotonic", True, Stamp(NOW, "arrival", "old")),
        (0, "monotonic", True, Stamp(NOW, "arrival", "old")),
        (NOW - 5 * MS, "monotonic", False, Stamp(NOW, "arrival", "foreign")),
        (NOW + OFFSET - 5 * MS, "realtime", True, Stamp(NOW - 5 * MS, "realtime", "")),
        (NOW + OFFSET - 5 * MS, "realtime", False, Stamp(NOW - 5 * MS, "realtime", "")),
        (NOW + OFFSET + AHEAD_REALTIME_NS, "realtime", False, Stamp(NOW, "realtime", "")),
        (NOW + OFFSET + AHEAD_REALTIME_NS + 1, "realtime", True, Stamp(NOW, "arrival", "future")),
        (NOW, "realtime", True, Stamp(NOW, "arrival", "old")),  # a monotonic stamp called realtime
        (NOW + OFFSET, "monotonic", True, Stamp(NOW, "arrival", "future")),  # and the reverse
    ],
)
def test_stamps(ts_ns: int | None, kind: str, same_host: bool, expected: Stamp) -> None:
    assert interpret(ts_ns, kind, NOW, OFFSET, same_host=same_host) == expected


@given(st.integers(0, 2**63 - 1), st.sampled_from(["monotonic", "realtime"]), st.booleans())
def test_capture_is_never_after_arrival_nor_absurdly_old(ts_ns: int, kind: str, same_host: bool) -> None:
    made = interpret(ts_ns, kind, NOW, OFFSET, same_host=same_host)
    assert NOW - clock.AGE_MAX_NS <= made.capture_ns <= NOW and (made.clock == "arrival") == bool(made.fault)


def test_replacements_are_counted() -> None:
    policy = StampPolicy()
    now = time.monotonic_ns()
    for ts_ns, kind, same_host in (
        (now + 10**12, "monotonic", True), (1, "realtime", True), (now, "monotonic", False), (now, "monotonic", True),
        (None, "monotonic", True),
    ):
        policy.stamp(ts_ns, kind, now, same_host)
    assert (policy.future, policy.old, policy.foreign) == (1, 1, 1)


def test_a_real_realtime_stamp_of_now_is_believed() -> None:
    policy = StampPolicy()
    wall = time.monotonic_ns() + clock.wall_offset_ns()
    made = policy.stamp(wall, "realtime", time.monotonic_ns())
    assert made.clock == "realtime" and made.fault == ""
