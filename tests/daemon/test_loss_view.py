"""What a person reads of lost engines."""

from __future__ import annotations

import pytest

from orind.daemon.age import age
from orind.daemon.faults import MEANINGS, Fault
from orind.daemon.loss_view import counts, last_failover

S = 10**9


def test_nothing_is_said_where_none_was_lost() -> None:
    status = {"losses": {}, "failover": {}}
    assert counts(status) == [] and last_failover(status, 0) == ""


def test_each_kind_with_its_count_and_the_last_failover() -> None:
    last = {"number": 1, "at_ns": 5 * S, "fault": "silent", "reason": "no heartbeat for 150 ms", "frames": 2}
    status = {"losses": {"died": 1, "silent": 2}, "failover": last}
    assert counts(status) == [(1, MEANINGS[Fault.DIED]), (2, MEANINGS[Fault.SILENT])]
    assert counts({"losses": {"of a newer daemon": 3}}) == [(3, "of a newer daemon")]
    assert last_failover(status, 17 * S) == "12 s ago, 2 frames in flight: no heartbeat for 150 ms"
    status["failover"] = {**last, "frames": 1}
    assert last_failover(status, 5 * S) == "0 s ago, 1 frame in flight: no heartbeat for 150 ms"


@pytest.mark.parametrize(
    ("seconds", "shown"), [(59, "59 s"), (60, "1 min"), (3540, "59 min"), (9000, "2 h"), (3_456_000, "40 d")]
)
def test_how_long_ago(seconds: int, shown: str) -> None:
    assert age(seconds) == shown
