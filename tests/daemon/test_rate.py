"""Token buckets against a plain count in simulated time."""

from __future__ import annotations

import math
import random
from fractions import Fraction

import pytest
from stand_ins import MS, S

from orind.daemon.rate import TOKEN, TokenBucket


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


@pytest.mark.parametrize("rate_hz", [0.001, 1 / 3, 7.3, 100.0, 99_999.9])
def test_the_rate_is_exact_to_the_nanosecond_after_any_number_of_triggers(rate_hz: float) -> None:
    bucket, rng, now = TokenBucket(rate_hz, 5), random.Random(3), 17
    taken: list[int] = []
    step = max(2, int(1e9 / rate_hz / 3))
    for _ in range(10_000):
        now += rng.randrange(1, step)
        if bucket.take(now):
            taken.append(now)
    earned = Fraction((taken[-1] - taken[0]) * round(rate_hz * 1e6), TOKEN)
    assert len(taken) <= 5 + earned, "never more than the burst and the rate"
    fresh = TokenBucket(rate_hz, 2)  # of one, a full bucket spills what a nanosecond is too much
    period = Fraction(TOKEN, round(rate_hz * 1e6))
    assert fresh.take(0) and fresh.take(0)
    for n in range(1, 20_000):
        due = math.ceil(n * period)
        assert not fresh.take(due - 1) and fresh.take(due), "neither too early nor too late, after any number"


def test_a_clock_that_goes_back_neither_fills_nor_empties_the_bucket() -> None:
    bucket = TokenBucket(10, 2)
    assert [bucket.take(5 * S) for _ in range(3)] == [True, True, False]
    assert not any(bucket.take(5 * S - n * MS) for n in range(1, 5000)), "nothing is earned by going back"
    assert not bucket.take(5 * S + 99 * MS) and bucket.take(5 * S + 100 * MS)


def test_after_ten_minutes_of_silence_the_burst_and_not_one_more() -> None:
    bucket = TokenBucket(2, 3)
    for visit in range(1, 50):
        assert [bucket.take(visit * 600 * S) for _ in range(4)] == [True, True, True, False]
