"""scripts/bench_governor: a short seeded run keeps its limits, and a governor that does not govern fails it."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

import bench_governor
from governor_runs import Bursts, Spec, mode_for, run, settings

from orind.power import simulation
from orind.power.governor import Governor

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


def test_a_governor_that_lets_go_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    class Careless(Governor):
        def decide(self, *arguments, **named):  # type: ignore[no-untyped-def]
            decision = super().decide(*arguments, **named)
            return dataclasses.replace(decision, gpu_cap_hz=decision.gpu_cap_hz + 204_000_000)

    monkeypatch.setattr(simulation, "Governor", Careless)
    wrong = bench_governor.budget("orin-nano-super", 0.05, [2], lambda specs: [run(spec) for spec in specs])
    assert any("within 1.5 W" in line for line in wrong) and any("over budget" in line for line in wrong)


def test_heat_is_judged() -> None:
    assert bench_governor.heat(0.05, [1], lambda specs: [run(spec) for spec in specs]) == []


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
