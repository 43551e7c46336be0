"""What a person reads of lost engines."""

from __future__ import annotations

import pytest

from orind.daemon.faults import MEANINGS, Fault
from orind.daemon.loss_view import lines

S = 10**9


def test_nothing_is_said_where_none_was_lost() -> None:
    assert lines({"losses": {}, "failover": {}}, 0) == []


def test_each_kind_with_its_count_and_the_last_failover() -> None:
    last = {"number": 1, "at_ns": 5 * S, "fault": "silent", "reason": "no heartbeat for 150 ms", "frames": 2}
    assert lines({"losses": {"died": 1, "silent": 2}, "failover": last}, 17 * S) == [
        f"1 engine: {MEANINGS[Fault.DIED]}",
        f"2 engines: {MEANINGS[Fault.SILENT]}",
        "last failover 12 s ago, 2 frames in flight: no heartbeat for 150 ms",
    ]


@pytest.mark.parametrize(("seconds", "shown"), [(59, "59 s"), (60, "1.0 min"), (3599, "60.0 min"), (9000, "2.5 h")])
def test_long_ago(seconds: int, shown: str) -> None:
    last = {"at_ns": 0, "reason": "slow", "frames": 1}
    assert lines({"losses": {}, "failover": last}, seconds * S) == [
        f"last failover {shown} ago, 1 frame in flight: slow"
    ]
