"""scripts/bench_governor: a short seeded run keeps its limits, and a governor that does not govern fails it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable

import bench_governor
import pytest
from governor_runs import Bursts, Outcome, Spec, _Counted, mode_for, run, settings

from orind.power import simulation
from orind.power.governor import Governor
from orind.power.plant.simulated import simulated_board

SHORT = Spec("orin-nano-super", "orin-nano-super-12w", "governor", 2, 0.08)


def test_a_short_run_keeps_the_limits(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench_governor.main(["--hours", "0.08", "--seeds", "2", "--modules", "orin-nano-super", "--jobs", "1"]) == 0
    shown = capsys.readouterr().out
    assert "verdict: every limit was kept" in shown and "nothing was measured on an Orin" in shown
    for row in ("governor ", "no control ", "nvpmodel mode alone ", "plain step governor ", "fixed, ", "limit ",
                "constants high "):
        assert row in shown, row


def test_runs_are_repeatable_and_fair() -> None:
    short = dataclasses.replace(SHORT, hours=0.05)
    assert run(short) == run(short)
    free, governed = run(dataclasses.replace(short, control="none")), run(short)
    assert free.seconds == governed.seconds, "all controls get the same load"
    assert free.mean_w > 15 and free.within == 0.0 and abs(governed.mean_w - 12) < 0.5


def _careless(monkeypatch: pytest.MonkeyPatch, cap_hz: Callable[[int, int], int]) -> None:
    """A governor that sets what `cap_hz` makes of its cap and the number of its tick."""
    class Careless(Governor):
        ticks = 0

        def decide(self, *arguments, **named):  # type: ignore[no-untyped-def]
            decision = super().decide(*arguments, **named)
            self.ticks += 1
            return dataclasses.replace(decision, gpu_cap_hz=cap_hz(decision.gpu_cap_hz, self.ticks))

    monkeypatch.setattr(simulation, "Governor", Careless)


# a run without a governor is the same whichever governor is tried
_without_governor = functools.cache(run)


def _make(specs: Iterable[Spec]) -> list[Outcome]:
    return [run(spec) if spec.control == "governor" else _without_governor(spec) for spec in specs]


def test_a_governor_that_lets_go_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    _careless(monkeypatch, lambda hz, _: hz + 204_000_000)
    wrong = bench_governor.budget("orin-nano-super", 0.05, [2], _make)
    assert any("within 1.5 W" in line for line in wrong) and any("s over budget" in line for line in wrong)


def test_a_governor_that_looks_in_every_tenth_tick_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nine ticks far over the budget and one under it are never over for a second without a break."""
    _careless(monkeypatch, lambda hz, tick: hz + 204_000_000 if tick % 10 else 306_000_000)
    wrong = bench_governor.budget("orin-nano-super", 0.05, [2], _make)
    assert any("W in the mean of a second" in line for line in wrong), wrong
    assert not any("s over budget" in line for line in wrong)


@pytest.mark.parametrize(("watts", "wrong"), [(13.0, []), (14.0, ["short: 14.00 W in the mean of a second"])])
def test_seconds_that_are_not_at_full_load_are_judged(watts: float, wrong: list[str]) -> None:
    facts, policy, module = settings(SHORT)
    board, counted = simulated_board(facts, module), _Counted(12.0, 1.5)
    for load in (1.0,) * 9 + (0.5,) + (0.0,) * 10:
        counted.add(watts if load else 4.0, load, 12_000, board, "free")
    outcome = counted.outcome(SHORT, 1.0)
    found: list[str] = []
    bench_governor._judge_power(found, outcome, policy, "short")
    assert outcome.seconds == 0 and found == wrong


def test_heat_is_judged(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench_governor.heat(0.1, [1], _make) == []
    limits = capsys.readouterr().out.splitlines()[-1].split()
    assert limits == ["limit", "<=1", ">=100%", "<=85", "0"]


@pytest.mark.parametrize(("cap_hz", "wrong"), [
    (lambda hz, _: 306_000_000, ["mean clock 306 MHz, fixed 8"]),
    (lambda hz, _: 1_300_500_000, ["C", "throttled for ", "s over budget"])],
    ids=["hardly works", "lets go"])
def test_a_governor_that_is_careless_of_heat_is_found(monkeypatch: pytest.MonkeyPatch,
                                                      cap_hz: Callable[[int, int], int], wrong: list[str]) -> None:
    _careless(monkeypatch, cap_hz)
    found = bench_governor.heat(0.1, [1], _make)
    assert len(found) == len(wrong) and all(part in line for part, line in zip(wrong, found, strict=True)), found


def test_a_short_run_does_not_judge_the_clock_where_heat_binds(monkeypatch: pytest.MonkeyPatch) -> None:
    _careless(monkeypatch, lambda hz, _: 306_000_000)
    assert bench_governor.heat(0.05, [1], _make) == []


def test_the_load_is_what_it_says() -> None:
    bursts = Bursts(5, 7200)
    loads = [bursts.at(i * 0.01) for i in range(720_000)]
    phases = [sum(loads[i:i + 6000]) / 6000 for i in range(0, 720_000, 6000)]
    assert 0.4 <= sum(loads) / len(loads) <= 0.75 and min(phases) < 0.3 and max(phases) > 0.9
    starts = [i for i in range(1, 720_000) if loads[i] > 0 and loads[i - 1] == 0]
    assert len(starts) > 300 and all(loads[i + 11] in (0.0, 1.0) for i in starts[:-1])


def test_every_constant_is_made_wrong() -> None:
    right = settings(SHORT)[0].model
    for how, factors in (("high", {1.25}), ("low", {0.75}), ("mixed", {0.75, 1.25})):
        wrong = settings(dataclasses.replace(SHORT, wrong=how))[0].model
        found = {round(getattr(wrong, f.name) / getattr(right, f.name), 9) for f in dataclasses.fields(right)
                 if f.name != "reference_hz"}
        assert found == factors and wrong.reference_hz == right.reference_hz


def test_the_mode_is_the_one_that_its_name_suggests() -> None:
    names = {module: mode_for(settings(Spec(module, policy, "mode", 1, 1))[0], watts).name
             for module, policy, watts in (("agx-orin", "agx-orin-30w", 30_000), ("orin-nx", "orin-nx-20w", 20_000),
                                           ("orin-nano-super", "orin-nano-super-12w", 12_000))}
    assert names == {"agx-orin": "MODE_30W", "orin-nx": "15W", "orin-nano-super": "7W"}


@pytest.mark.parametrize("arguments", [["--hours", "0"], ["--modules", "tx2"], ["--jobs", "0"]])
def test_usage(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        bench_governor.main(arguments)
    assert caught.value.code == 2
