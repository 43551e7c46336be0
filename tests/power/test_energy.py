"""The books of energy: closed forms, conservation under random histories, what is unknown, what a reload keeps."""

from __future__ import annotations

import json
from typing import Any

import pytest
from closed_loop import facts_of, new_loop
from hypothesis import given, settings
from hypothesis import strategies as st

from orind.power.energy import GAP_NS, LONGEST_NS, REST_NS, SILENT_NS, WAIT_NS, EnergyMeter, PowerSample
from orind.power.errors import PowerError

MS = 1_000_000
S = 1000 * MS
TICK_NS = 100 * MS
PARTS = ("idle_joules", "inference_joules", "other_joules")


class Board:
    """A meter, and a steward that ticks: the test says power and who worked."""

    def __init__(self, routes: dict[str, tuple[str, ...]] | None = None) -> None:
        self.meter, self.now_ns = EnergyMeter(), 7 * S
        self.meter.keep(routes or {"front": ("net",), "back": ("net", "other")})
        self.meter.take(PowerSample(self.now_ns, 10_000, 10_000, False))

    def run(self, ticks: int, board_mw: int | None, idle_mw: int = 10_000,
            work: tuple[tuple[str, list[str], int], ...] = (), lasted_ns: int = TICK_NS) -> None:
        for _ in range(ticks):
            for model, cameras, busy_ns in work:
                self.meter.ran(model, cameras, busy_ns)
            self.now_ns += lasted_ns
            self.meter.take(PowerSample(self.now_ns, board_mw, idle_mw, bool(work)))

    @property
    def table(self) -> dict[str, Any]:
        return self.meter.table()

    def of(self, model: str, camera: str) -> dict[str, Any]:
        found: dict[str, Any] = self.table["models"][model]["cameras"][camera]
        return found


def test_constant_power_is_shared_by_engine_time() -> None:
    board = Board()
    # 20 s of 30 W, 10 W of it idle: 400 J for inference; net has 60 ms of every 80 (front 40, back 20), other 20
    board.run(200, 30_000, 10_000, (("net", ["front", "front", "back"], 60 * MS), ("other", ["back"], 20 * MS)))
    table = board.table
    assert [table[key] for key in ("board_joules", *PARTS)] == [600, 200, 400, 0]
    assert table["board_watt_hours"] == pytest.approx(1 / 6) and (table["known_s"], table["unknown_s"]) == (20, 0)
    assert board.of("net", "front") == {"joules": 200, "frames": 400, "joules_per_frame": 0.5}
    assert board.of("net", "back") == {"joules": 100, "frames": 200, "joules_per_frame": 0.5}
    assert board.of("other", "back") == {"joules": 100, "frames": 200, "joules_per_frame": 0.5}
    assert {k: v for k, v in table["models"]["net"].items() if k != "cameras"} == {
        "joules": 300, "frames": 600, "joules_per_frame": 0.5}


def test_an_idle_board_has_no_inference_and_power_without_work_is_of_others() -> None:
    board = Board()
    board.run(100, 9_000, 10_000)  # the model of idle may be too high: then all of it is idle
    board.run(100, 14_000, 10_000)
    assert [board.table[key] for key in ("board_joules", *PARTS)] == [230, 190, 0, 40]
    assert board.of("net", "front") == {"joules": 0, "frames": 0, "joules_per_frame": None}


def test_a_lost_sensor_is_unknown_time_and_its_frames_make_no_figure_smaller() -> None:
    board, work = Board(), (("net", ["front"], 50 * MS),)
    board.run(100, 20_000, 10_000, work)
    board.run(50, None, 10_000, work)
    board.run(100, 20_000, 10_000, work)
    table = board.table
    assert (table["known_s"], table["unknown_s"], table["unmeasured_frames"]) == (20, 5, 50)
    assert table["board_joules"] == 400 and board.of("net", "front")["joules_per_frame"] == pytest.approx(1.0)


def test_a_sensor_lost_from_the_start_gives_no_energy_at_all() -> None:
    board = Board()
    assert board.table["board_joules"] is None and board.table["board_watt_hours"] is None
    board.run(100, None, 10_000, (("net", ["front"], 50 * MS),))
    assert [board.table[key] for key in ("board_joules", *PARTS, "board_watt_hours")] == [None] * 5
    assert (board.table["known_s"], board.table["unknown_s"]) == (0, 10)


def test_a_stewards_restart_leaves_a_gap_that_is_unknown() -> None:
    board, work = Board(), (("net", ["front"], 50 * MS),)
    board.run(40, 20_000, 10_000, work)
    board.run(1, 25_000, 12_000, work, lasted_ns=GAP_NS + 1)
    board.run(100, 20_000, 10_000, work)
    table = board.table
    assert table["board_joules"] == 280 and table["known_s"] == 14 and table["unknown_s"] == pytest.approx(1)
    assert table["unmeasured_frames"] == 1
    # within the bound the reading after it stands for the time since the one before
    board.run(20, 20_000, lasted_ns=GAP_NS)
    assert board.table["known_s"] == 34 and board.table["board_joules"] == 680


def test_a_steward_that_is_gone_for_good_is_unknown_time_too_and_its_late_words_are_not_counted_twice() -> None:
    board = Board()
    board.run(20, 20_000)
    began_ns = board.now_ns
    board.meter.tick(began_ns + SILENT_NS)
    assert board.table["unknown_s"] == 0
    board.meter.tick(began_ns + SILENT_NS + 1)
    board.meter.take(PowerSample(began_ns + S, 20_000, 10_000, False))
    assert board.table["unknown_s"] == pytest.approx(5) and board.table["board_joules"] == 40
    assert EnergyMeter().table()["unknown_s"] == 0, "without a first sample time is not counted"


def test_a_batch_longer_than_a_period_finds_its_energy_when_it_is_answered() -> None:
    board = Board()
    for _ in range(50):
        board.now_ns += TICK_NS
        board.meter.take(PowerSample(board.now_ns, 20_000, 10_000, True))
    assert board.table["board_joules"] is None, "it waits"
    board.run(1, 20_000, 10_000, (("net", ["front"], 5 * S),))
    board.run(REST_NS // TICK_NS, 10_000)
    assert board.of("net", "front")["joules"] == pytest.approx(51) and board.table["other_joules"] == 0
    for _ in range(WAIT_NS // TICK_NS):  # an engine that never answers: not for ever
        board.now_ns += TICK_NS
        board.meter.take(PowerSample(board.now_ns, 20_000, 10_000, True))
    assert board.table["other_joules"] == 600


def test_a_reload_keeps_the_cameras_that_stay_and_the_sum_of_all() -> None:
    board = Board({"front": ("net",), "back": ("net",)})
    work = (("net", ["front", "back"], 50 * MS),)
    board.run(19, 30_000, 10_000, work)  # within a period
    board.meter.keep({"front": ("net",), "side": ("net",)})
    board.run(101, 30_000, 10_000, work)  # an old engine still answers for the camera that went
    board.meter.stop()
    assert set(board.table["models"]["net"]["cameras"]) == {"front", "side"}
    assert board.of("net", "front") == {"joules": 120, "frames": 120, "joules_per_frame": 1}
    assert board.of("net", "side")["frames"] == 0
    assert board.table["inference_joules"] == 240
    board.meter.keep({"back": ("net",)})
    assert board.of("net", "back")["joules"] == 0 and board.table["inference_joules"] == 240


def test_when_power_is_governed_no_more_the_books_stay_as_they_are() -> None:
    board = Board()
    board.run(15, 20_000, 10_000, (("net", ["front"], MS),))
    board.meter.stop()
    board.meter.tick(board.now_ns + 3600 * S)
    board.now_ns += 3600 * S
    board.meter.take(PowerSample(board.now_ns, 20_000, 10_000, False))
    assert (board.table["board_joules"], board.table["known_s"], board.table["unknown_s"]) == (30, 1.5, 0)


samples = st.tuples(st.one_of(st.none(), st.integers(0, 60_000)), st.integers(0, 30_000), st.integers(1, 3 * GAP_NS))
batches = st.lists(st.tuples(st.sampled_from(["net", "other", "gone"]),
                             st.lists(st.sampled_from(["front", "back", "nobody"]), min_size=1, max_size=4),
                             st.integers(0, 500 * MS)), max_size=3)


@settings(deadline=None)
@given(st.lists(st.tuples(samples, batches), max_size=120), st.integers(0, 119))
def test_energy_is_conserved_and_no_figure_falls(history: list[Any], reload_at: int) -> None:
    meter, now_ns, known_pj, known_ns, unknown_ns = EnergyMeter(), 5, 0, 0, 0
    meter.keep({"front": ("net",), "back": ("net", "other")})
    meter.take(PowerSample(now_ns, 1, 1, False))
    before = meter.table()
    for n, ((board_mw, idle_mw, lasted_ns), ran) in enumerate(history):
        if n == reload_at:
            meter.keep({"front": ("net", "other"), "side": ("net",)})
            before["models"] = meter.table()["models"]
        for batch in ran:
            meter.ran(*batch)
        now_ns += lasted_ns
        meter.take(PowerSample(now_ns, board_mw, idle_mw, bool(ran)))
        if board_mw is None or lasted_ns > GAP_NS:
            unknown_ns += lasted_ns
        else:
            known_pj, known_ns = known_pj + board_mw * lasted_ns, known_ns + lasted_ns
        table = meter.table()
        for key in ("board_joules", *PARTS, "known_s", "unknown_s", "unmeasured_frames"):
            assert (table[key] or 0) >= (before[key] or 0), key
        for model, figures in before["models"].items():
            for camera, told in figures["cameras"].items():
                now = table["models"][model]["cameras"][camera]
                assert now["joules"] >= told["joules"] and now["frames"] >= told["frames"]
        before = table
    meter.stop()
    table = meter.table()
    assert table["unknown_s"] == unknown_ns / S and table["known_s"] == known_ns / S
    if known_ns:
        assert table["board_joules"] == known_pj / 10**12
        assert sum(table[key] for key in PARTS) == pytest.approx(table["board_joules"], rel=1e-12)
        told = sum(figures["joules"] for figures in table["models"].values())
        assert told <= table["inference_joules"] * (1 + 1e-12) + 1e-12


@settings(deadline=None)
@given(st.lists(st.integers(1, 10**9), min_size=1, max_size=30), st.integers(0, 10**6))
def test_shares_are_exact_to_the_picojoule(busy: list[int], dynamic_mw: int) -> None:
    meter = EnergyMeter()
    meter.keep({f"c{n}": ("net",) for n in range(len(busy))})
    meter.take(PowerSample(0, 0, 0, True))
    for n, busy_ns in enumerate(busy):
        meter.ran("net", [f"c{n}"], busy_ns)
    for n in range(3):
        meter.take(PowerSample((n + 1) * GAP_NS, 1_000 + dynamic_mw, 1_000, True))
    meter.stop()
    whole_pj = 3 * GAP_NS * dynamic_mw
    for n, busy_ns in enumerate(busy):
        got = meter.table()["models"]["net"]["cameras"][f"c{n}"]["joules"] * 10**12
        assert got == pytest.approx(whole_pj * busy_ns / sum(busy), abs=2, rel=1e-12)
    assert meter.table()["models"]["net"]["joules"] == whole_pj / 10**12


@pytest.mark.parametrize("text", [
    "nonsense", "[]", '{"now_ns": 1}', '{"now_ns": 1.5, "board_mw": 1, "idle_mw": 1, "working": true}',
    '{"now_ns": 1, "board_mw": -1, "idle_mw": 1, "working": true}',
    '{"now_ns": 1, "board_mw": 1, "idle_mw": null, "working": true}',
    '{"now_ns": 1, "board_mw": 1, "idle_mw": 1, "working": 1}'])
def test_a_malformed_sample_is_refused(text: str) -> None:
    with pytest.raises(PowerError, match="power sample"):
        PowerSample.from_json(text)


def test_a_sample_survives_the_channel() -> None:
    for sample in (PowerSample(5, None, 0, False), PowerSample(6, 21_000, 9_000, True)):
        assert PowerSample.from_json(sample.to_json()) == sample
    assert json.loads(PowerSample(5, None, 0, False).to_json())["board_mw"] is None


def test_on_a_simulated_board_the_sum_is_the_plants_and_bursts_get_what_they_drew() -> None:
    """5 minutes of AGX Orin in bursts of a second in three. The sensor shows the mean of up to 860 ms before."""
    loop, idle_mw = new_loop(), facts_of("agx-orin").model.idle_mw
    idle_w = loop.board.model.rails_w
    true_idle_w = sum(idle_w[part] for part in ("gpu", "cpu", "soc", "system"))
    meter, true_j = EnergyMeter(), 0.0
    meter.keep({"front": ("net",)})
    for tick in range(3000):
        at_work = tick % 30 < 10
        busy_ns = loop.board.busy_ns
        report = loop.tick(lambda _, at_work=at_work: float(at_work))
        if tick >= 600:
            meter.take(report.power_sample(idle_mw))
        if tick == 600:
            true_j = 0.0
        true_j += loop.trace.power_w[-1] / 10
        if busy := loop.board.busy_ns - busy_ns:
            meter.ran("net", ["front"], busy)
    table = meter.table()
    true_inference_j = true_j - true_idle_w * table["known_s"]
    assert table["board_joules"] == pytest.approx(true_j, rel=0.01)
    assert table["inference_joules"] == pytest.approx(true_inference_j, rel=0.03)
    assert table["other_joules"] < 0.01 * true_inference_j


def test_a_period_waits_for_the_sensor_to_have_seen_the_end_of_a_burst_but_not_for_ever() -> None:
    board = Board()
    board.run(20, 30_000, 10_000, (("net", ["front"], 90 * MS),))
    assert board.table["board_joules"] is None
    board.run(REST_NS // TICK_NS - 1, 25_000, 10_000)  # what the register still shows of it
    assert board.table["board_joules"] is None
    board.run(1, 10_000, 10_000)
    assert board.of("net", "front")["joules"] == pytest.approx(40 + 12) and board.table["other_joules"] == 0
    board.run(LONGEST_NS // TICK_NS, 30_000, 10_000, (("net", ["front"], 90 * MS),))
    assert board.of("net", "front")["joules"] == pytest.approx(52 + 200)


def test_a_frozen_reading_is_unknown_power() -> None:
    loop = new_loop(name="orin-nx")
    loop.run(20, lambda s: float(s % 4 < 2))
    assert loop.trace.reports[-1].power_sample(1000).board_mw is not None
    loop.board.faults.stuck |= set(loop.board.model.constants.rails)
    loop.run(20, lambda s: float(s % 8 < 4))
    seen = [report.power_sample(1000).board_mw for report in loop.trace.reports[-100:]]
    assert None in seen
