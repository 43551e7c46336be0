"""The histogram against numpy, within one bucket's width."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orind.ipc.histogram import BUCKETS, MAX_NS, Histogram, bucket_of, edges_ns

RNG = np.random.default_rng(4)
SAMPLES = {
    "lognormal": RNG.lognormal(15, 1.0, 5000).astype(np.int64),
    "uniform": RNG.integers(0, 40_000_000, 5000),
    "two peaks": np.concatenate([RNG.normal(5e6, 1e5, 3000), RNG.normal(5e7, 1e6, 3000)]).astype(np.int64),
    "tiny": RNG.integers(0, 15, 500),
    "one": np.array([12_345_678]),
    "equal": np.full(100, 1_000_000),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_quantiles_agree_with_numpy_within_the_bucket(name: str) -> None:
    values = SAMPLES[name]
    histogram = Histogram()
    for value in values.tolist():
        histogram.add(value)
    assert (histogram.count, histogram.sum_ns, histogram.max_ns) == (len(values), int(values.sum()), int(values.max()))
    for p in (0, 0.01, 0.25, 0.5, 0.9, 0.95, 0.99, 1):
        got = histogram.quantile(p)
        low, high = np.quantile(values, p, method="lower"), np.quantile(values, p, method="higher")
        assert got is not None
        assert edges_ns(bucket_of(int(low)))[0] <= got <= edges_ns(bucket_of(int(high)))[1], p


@given(st.integers(0, MAX_NS))
def test_a_value_lies_in_its_bucket_of_at_most_a_sixteenth(ns: int) -> None:
    low, high = edges_ns(bucket_of(ns))
    assert low <= ns < high and (high - low) <= max(1, low / 16)


def test_buckets_tile_the_range() -> None:
    edges = [edges_ns(i) for i in range(BUCKETS)]
    assert edges[0][0] == 0 and edges[-1][1] == MAX_NS + 1
    assert all(a[1] == b[0] for a, b in itertools.pairwise(edges))


def test_nothing_is_lost_at_the_ends() -> None:
    histogram = Histogram()
    assert histogram.quantile(0.5) is None
    histogram.add(-5)
    histogram.add(1 << 60)
    assert histogram.count == 2 and histogram.max_ns == MAX_NS and histogram.quantile(0) == 0.5
    with pytest.raises(ValueError, match="between"):
        histogram.quantile(1.5)


def test_json_round_trip() -> None:
    made = Histogram()
    for value in SAMPLES["lognormal"].tolist():
        made.add(value)
    back = Histogram.from_json(json.loads(json.dumps(made.to_json())))
    assert back.to_json() == made.to_json() and back.quantile(0.99) == made.quantile(0.99)


def test_cumulative_for_prometheus() -> None:
    histogram = Histogram()
    for value in (1, 2, 3, 1000, 1_000_000):
        histogram.add(value)
    assert histogram.cumulative([0, 2, 3, 2000, 10_000_000, 1 << 60]) == [0, 2, 3, 4, 5, 5]


@pytest.mark.parametrize("fields", [
    {}, {"buckets": []}, {"buckets": {"x": 1}}, {"buckets": {"-1": 1}}, {"buckets": {"9999": 1}},
    {"buckets": {"1": -1}},
    {"buckets": {"1": True}}, {"buckets": {"1": 1}, "count": 2, "sum_ns": 1, "max_ns": 1}, {"buckets": {}, "count": 0},
])
def test_refuses_foreign_json(fields: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        Histogram.from_json(fields)
