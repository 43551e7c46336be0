"""Token buckets against a plain count in simulated time."""

from __future__ import annotations

from stand_ins import MS, S

from orind.daemon.rate import TokenBucket


def test_no_limit_never_refuses() -> None:
    bucket = TokenBucket(0, 1)
    assert all(bucket.take(0) for _ in range(1000))


def test_a_burst_then_the_rate() -> None:
    bucket = TokenBucket(10, 3)
    assert [bucket.take(5 * S) for _ in range(5)] == [True, True, True, False, False]
    assert not bucket.take(5 * S + 99 * MS)
    assert bucket.take(5 * S + 101 * MS) and not bucket.take(5 * S + 102 * MS)


def test_saves_no_more_than_the_burst() -> None:
    bucket = TokenBucket(100, 2)
    assert bucket.take(0)
    assert [bucket.take(3600 * S) for _ in range(4)] == [True, True, False, False]


def test_over_a_long_time_exactly_the_rate_passes() -> None:
    bucket = TokenBucket(40, 4)
    passed = sum(bucket.take(n * 5 * MS) for n in range(20_000))  # 200 Hz for 100 s
    assert abs(passed - (40 * 100 + 4)) <= 1
