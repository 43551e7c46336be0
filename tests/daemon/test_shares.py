"""Versions by share: exact in every block, the same for the same trigger, blind to what alternates on the line."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from stand_ins import S, config, frame

from orind.daemon.config import Config
from orind.daemon.intake import Intake
from orind.daemon.shares import BLOCK_MAX, Shares, block_length
from orind.ipc.clock import StampPolicy

TABLES = (
    {"a": 1}, {"a": 1, "b": 1}, {"a": 90, "b": 10}, {"a": 70, "b": 30}, {"a": 1, "b": 999}, {"a": 5, "b": 0},
    {"a": 3, "b": 2, "c": 1}, {f"m{n}": n for n in range(1, 9)}, {"a": 999, "b": 1000}, {"a": 97, "b": 3},
)


@pytest.mark.parametrize("table", [t for t in TABLES if block_length(t) <= BLOCK_MAX], ids=str)
def test_every_block_holds_each_version_exactly_as_often_as_its_share_says(table: dict[str, int]) -> None:
    shares, length = Shares("line1", table), block_length(table)
    for block in (0, 1, 2, 77, 10**12):
        found = Counter(shares.version(block * length + place) for place in range(length))
        assert found == Counter({name: share * length // sum(table.values()) for name, share in table.items() if share})


def test_any_run_of_triggers_is_off_by_less_than_a_block() -> None:
    shares, rng = Shares("line1", {"a": 90, "b": 10}), random.Random(1)
    for _ in range(500):
        first, count = rng.randrange(10**6), rng.randrange(1, 500)
        found = Counter(shares.version(seq) for seq in range(first, first + count))
        assert abs(found["b"] - count / 10) <= 2, "at most one of each cut block's ends"


def test_the_same_trigger_goes_to_the_same_version_whatever_came_between() -> None:
    first = [Shares("line1", {"a": 7, "b": 3}).version(seq) for seq in range(1000)]
    again, order = Shares("line1", {"a": 70, "b": 30}), list(range(1000))
    random.Random(2).shuffle(order)
    assert {seq: again.version(seq) for seq in order} == dict(enumerate(first))
    assert "".join(first[:20]) == "aaabaabaabaabaabaaab", "a restart, another machine, another Python: the same"


@pytest.mark.parametrize("lanes", [2, 3, 5, 10])
def test_parts_that_come_in_turns_are_not_sorted_by_version(lanes: int) -> None:
    """Each lane gets its share of the new version, though the pattern's length is a multiple of the lanes' number."""
    shares = Shares("line1", {"a": 7, "b": 3})
    found = Counter(seq % lanes for seq in range(30_000) if shares.version(seq) == "b")
    assert all(abs(found[lane] - 9000 / lanes) < 0.1 * 9000 / lanes for lane in range(lanes)), found


def test_cameras_do_not_go_in_step() -> None:
    one, two = Shares("line1", {"a": 1, "b": 1}), Shares("line2", {"a": 1, "b": 1})
    assert [one.version(n) for n in range(64)] != [two.version(n) for n in range(64)]


# -- in the configuration and at the intake ------------------------------------------------------------------------


def two_versions(**changes: object) -> Config:
    return config(
        models={"v1": {"plan": "a"}, "v2": {"plan": "b"}},
        cameras={"cam": {"model": {"v1": 3, "v2": 1}, "deadline_ms": 500}, **changes},
    )


def test_a_frame_is_routed_by_its_number_and_stays_there_across_a_reload() -> None:
    intake = Intake(two_versions(), {}, StampPolicy())
    frames = [intake.parse(frame(seq), 10 * S, True) for seq in range(400)]
    assert Counter(f.model for f in frames) == {"v1": 300, "v2": 100}
    before = [f.model for f in frames]
    same = Intake(two_versions(other={"model": "v2", "deadline_ms": 5}), {}, StampPolicy())
    assert all(same.readmit(f, 0) is None for f in frames) and [f.model for f in frames] == before
    one = Intake(config(models={"v3": {"plan": "c"}}, cameras={"cam": {"model": "v3", "deadline_ms": 500}}), {},
                 StampPolicy())
    assert all(one.readmit(f, 0) is None for f in frames) and {f.model for f in frames} == {"v3"}


def test_a_plain_name_is_the_whole_share() -> None:
    assert config().cameras["cam"].model == {"m": 1}
    assert Config.model_validate(two_versions().model_dump()) == two_versions()


@pytest.mark.parametrize(
    ("model", "text"),
    [
        ({"v1": 1, "v3": 1}, "cameras.cam.model: no model 'v3' (models: v1, v2)"),
        ({"v1": 0, "v2": 0}, "cameras.cam.model: the shares add up to 0 in lowest terms, 1 to 1000 are served"),
        ({"v1": 1000, "v2": 1}, "cameras.cam.model: the shares add up to 1001 in lowest terms"),
        ({"v1": 0.5, "v2": 0.5}, "valid integer"),
        ({"v1": -1, "v2": 2}, "greater than or equal to 0"),
        ({}, "at least 1 item"),
        ({f"v{n}": 1 for n in range(9)}, "at most 8 items"),
        ([("v1", 1)], "should be a model, or a table `MODEL: SHARE` of versions"),
        (7, "should be a model, or a table `MODEL: SHARE` of versions, got 7"),
        ("no/name", "should be 1 to 48 of the characters"),
    ],
)
def test_shares_that_cannot_be_are_refused(model: object, text: str) -> None:
    cameras = {"cam": {"model": model, "deadline_ms": 500}}
    with pytest.raises(ValueError) as refused:
        config(models={"v1": {"plan": "a"}, "v2": {"plan": "b"}}, cameras=cameras)
    assert text in str(refused.value)
