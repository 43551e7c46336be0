"""The governor on simulated boards, in simulated time, beside three baselines (scripts/bench_governor).

Three modules, a bursty load, ambient 25 to 45 C; then a hot cabinet, where temperature binds; then a model of which
every constant is wrong by 25 %, with a late busy counter. Invariant: it ends with 0 only if every limit that is printed
beside the figures was kept by the governor; the baselines are printed and never judged. No figure was measured on an
Orin.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor

from governor_runs import BUSY_LATE_NS, Outcome, Spec, run, settings

from orind.daemon.terminal import table
from orind.power.policy import Policy

# module, policy (its budget is in it)
CASES = {"agx-orin": "agx-orin-30w", "orin-nx": "orin-nx-20w", "orin-nano-super": "orin-nano-super-12w"}
HOT = Spec("agx-orin", "agx-orin-50w", "governor", 1, 2.0, ambient=(55.0, 55.0), fan="quiet")
WRONG = ("high", "low", "mixed")  # one for each seed, in turn
BASELINES = {"none": "no control", "mode": "nvpmodel mode alone", "steps": "plain step governor"}
# the limits
WITHIN, CLOSE_AIM, OVER_S, WRONG_WITHIN, TJ_MAX_C, SECONDS_PER_HOUR = 0.99, 0.95, 1.0, 0.90, 85.0, 500
WARM_HOURS = 0.1  # in less the heat sink is never as warm as it gets, and a fixed clock is let off

HEAD = ("control", "seed", "full s", "+-1.5 W", "+-0.5 W", "mean W", "max W", "over s", "read +-1.5", "read W",
        "clock", "Tj max", "throttled s", "paced s")


def main(arguments: list[str] | None = None) -> int:
    options = _options(arguments)
    begun = time.monotonic()
    print(f"{options.hours:g} simulated hours a run, seeds {', '.join(map(str, options.seeds))}; simulated boards "
          "(power/plant), nothing was measured on an Orin", flush=True)
    wrong: list[str] = []
    with ProcessPoolExecutor(options.jobs) as pool:
        make: Callable[[Iterable[Spec]], list[Outcome]] = lambda specs: list(pool.map(run, specs))  # noqa: E731
        for module in options.modules:
            wrong += budget(module, options.hours, options.seeds, make)
        if "agx-orin" in options.modules:
            wrong += heat(options.hours, options.seeds, make)
        for module in options.modules:
            wrong += wrong_model(module, options.hours, options.seeds, make)
    print(f"\n{time.monotonic() - begun:.0f} s for all runs")
    print("\n".join(["verdict: FAILED", *wrong] if wrong else ["verdict: every limit was kept"]))
    return 1 if wrong else 0


def budget(module: str, hours: float, seeds: list[int], make: Callable[[Iterable[Spec]], list[Outcome]]) -> list[str]:
    """The budget under a bursty load, and the baselines on the same load."""
    specs = [Spec(module, CASES[module], control, seed, hours)
             for control in ("governor", *BASELINES) for seed in seeds]
    outcomes = make(specs)
    governed = outcomes[: len(seeds)]
    facts, policy, _ = settings(specs[0])
    fixed = best_fixed(governed, make, lambda o: o.mean_w * 1000 <= policy.budget_mw)
    best = {outcome.spec.seed: outcome.work_mhz for outcome in fixed}
    print(f"\n{facts.title}, budget {policy.budget_mw / 1000:g} W, ambient 25 to 45 C, bursts idle to full in 100 ms")
    rows = [_row(BASELINES.get(o.spec.control, o.spec.control), o, best[o.spec.seed]) for o in outcomes]
    rows += [_row(f"fixed, {o.work_mhz:.0f} MHz", o, best[o.spec.seed]) for o in fixed]
    rows.append(["limit", "", f">={SECONDS_PER_HOUR * hours:.0f}", f">={WITHIN:.0%}", f"aim {CLOSE_AIM:.0%}", "",
                 f"<={_most_w(policy):g}", f"<={OVER_S:g}", "", "", ">=100%", f"<={TJ_MAX_C:g}", "0", ""])
    _print(rows)
    wrong: list[str] = []
    for o in governed:
        name = f"{module}, seed {o.spec.seed}"
        _judge(wrong, o.seconds >= SECONDS_PER_HOUR * hours, f"{name}: only {o.seconds} seconds at full load")
        _judge(wrong, o.within >= WITHIN, f"{name}: {o.within:.2%} within 1.5 W")
        _judge_power(wrong, o, policy, name)
        _judge(wrong, o.work_mhz >= best[o.spec.seed],
               f"{name}: mean clock {o.work_mhz:.0f} MHz, fixed {best[o.spec.seed]:.0f}")
        _judge(wrong, o.tj_max_c <= TJ_MAX_C and o.throttled_s == 0, f"{name}: {o.tj_max_c:.1f} C")
        if o.close < CLOSE_AIM:
            print(f"the aim was missed: {name}: {o.close:.1%} within 0.5 W")
    return wrong


def best_fixed(governed: list[Outcome], make: Callable[[Iterable[Spec]], list[Outcome]],
               keeps: Callable[[Outcome], bool]) -> list[Outcome]:
    """For each run the highest clock that, held all the time on the same board under the same load, `keeps` the limit
    over the same seconds: chosen with hindsight, which an operator does not have. Where none does, the lowest."""
    _, _, module = settings(governed[0].spec)
    clocks = module.gpu_table_hz
    tried: dict[tuple[int, int], Outcome] = {}

    def fits(seed: int, index: int) -> bool:
        return keeps(tried[seed, index])

    # begin beside the mean that the governor reached, then go on to where one fits and the next does not
    places = {o.spec.seed: max((i for i, hz in enumerate(clocks) if hz / 1e6 <= o.work_mhz), default=0)
              for o in governed}
    while True:
        wanted = [(seed, i) for seed, place in places.items() for i in (place, place + 1)
                  if i < len(clocks) and (seed, i) not in tried]
        specs = [dataclasses.replace(governed[0].spec, seed=seed, control=f"fixed:{i}") for seed, i in wanted]
        tried.update(zip(wanted, make(specs), strict=True))
        moved = False
        for seed, place in places.items():
            if not fits(seed, place) and place > 0:
                places[seed], moved = place - 1, True
            elif fits(seed, place) and place + 1 < len(clocks) and fits(seed, place + 1):
                places[seed], moved = place + 1, True
        if not moved:
            return [tried[o.spec.seed, places[o.spec.seed]] for o in governed]


def heat(hours: float, seeds: list[int], make: Callable[[Iterable[Spec]], list[Outcome]]) -> list[str]:
    """50 W in a cabinet of 55 C with the quiet fan: the temperature binds. The power model is then learned far below
    the budget, and the mean of a first cool second is up to 1.73 W above it (measured): it is printed, not judged."""
    specs = [dataclasses.replace(HOT, control=control, seed=seed, hours=hours)
             for control in ("governor", *BASELINES) for seed in seeds]
    outcomes = make(specs)
    governed = outcomes[: len(seeds)]
    fixed = best_fixed(governed, make, _stays_cool)
    best = {outcome.spec.seed: outcome.work_mhz for outcome in fixed}
    print("\nJetson AGX Orin 64 GB, budget 50 W, ambient 55 C, quiet fan: heat binds")
    rows = [_row(BASELINES.get(o.spec.control, o.spec.control), o, best[o.spec.seed]) for o in outcomes]
    rows += [_row(f"fixed, {o.work_mhz:.0f} MHz", o, best[o.spec.seed]) for o in fixed]
    rows.append(["limit", *[""] * 6, f"<={OVER_S:g}", "", "",
                 ">=100%" if hours >= WARM_HOURS else "", f"<={TJ_MAX_C:g}", "0", ""])
    _print(rows)
    wrong: list[str] = []
    for o in governed:
        name = f"heat, seed {o.spec.seed}"
        _judge(wrong, o.tj_max_c <= TJ_MAX_C, f"{name}: {o.tj_max_c:.2f} C")
        _judge(wrong, o.throttled_s == 0, f"{name}: throttled for {o.throttled_s:g} s")
        _judge(wrong, o.over_s <= OVER_S, f"{name}: {o.over_s:g} s over budget + 1.5 W")
        # whoever stays cool by hardly working holds every limit above
        _judge(wrong, o.work_mhz >= best[o.spec.seed] or hours < WARM_HOURS,
               f"{name}: mean clock {o.work_mhz:.0f} MHz, fixed {best[o.spec.seed]:.0f}")
    return wrong


def _stays_cool(o: Outcome) -> bool:
    return o.tj_max_c <= TJ_MAX_C and o.throttled_s == 0


def wrong_model(module: str, hours: float, seeds: list[int],
                make: Callable[[Iterable[Spec]], list[Outcome]]) -> list[str]:
    """Every constant of the model 25 % too high, too low, or in turn; busy counter late."""
    specs = [Spec(module, CASES[module], "governor", seed, hours, wrong=WRONG[i % len(WRONG)])
             for i, seed in enumerate(seeds)]
    outcomes = make(specs)
    print(f"\n{settings(specs[0])[0].title}, every model constant wrong by 25 %, busy counter "
          f"{BUSY_LATE_NS // 10**6} ms late")
    rows = [_row(f"constants {o.spec.wrong}", o, None) for o in outcomes]
    rows.append(["limit", "", "", f">={WRONG_WITHIN:.0%}", *[""] * 10])
    _print(rows)
    wrong: list[str] = []
    for o in outcomes:
        _judge(wrong, o.within >= WRONG_WITHIN, f"{module}, constants {o.spec.wrong}: {o.within:.2%} within 1.5 W")
    return wrong


def _row(name: str, o: Outcome, best_mhz: float | None) -> list[str]:
    clock = f"{o.work_mhz:.0f}" if best_mhz is None else f"{o.work_mhz / best_mhz:.1%}"
    return [name, str(o.spec.seed), str(o.seconds), f"{o.within:.2%}", f"{o.close:.1%}", f"{o.mean_w:.2f}",
            f"{o.max_w:.2f}", f"{o.over_s:.1f}", f"{o.reading_within:.1%}", f"{o.reading_mean_w:.2f}", clock,
            f"{o.tj_max_c:.1f}", f"{o.throttled_s:.0f}", f"{o.paced_s:.0f}"]


def _print(rows: list[list[str]]) -> None:
    print("\n".join(table(HEAD, rows)), flush=True)


def _most_w(policy: Policy) -> float:
    return (policy.budget_mw + policy.tolerance_mw) / 1000


def _judge_power(wrong: list[str], o: Outcome, policy: Policy, name: str) -> None:
    """Never over budget + tolerance for more than a second: neither without a break, nor in the mean of any second."""
    _judge(wrong, o.over_s <= OVER_S, f"{name}: {o.over_s:g} s over budget + 1.5 W")
    _judge(wrong, o.max_w <= _most_w(policy), f"{name}: {o.max_w:.2f} W in the mean of a second")


def _judge(wrong: list[str], kept: bool, text: str) -> None:
    if not kept:
        wrong.append(text)


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="The power governor on simulated boards, beside no control, an nvpmodel mode and a step governor.",
        epilog="full s: whole seconds at full load throughout, over which shares and means are taken. max W: largest "
        "mean of any second, sliding by 100 ms, loaded or not. over s: longest over budget + 1.5 W (100 ms means). "
        "read: what the board's sensors showed, the rest is the plant's truth. clock: mean clock times powered TPCs in "
        "those seconds, against the highest fixed clock whose mean is within the budget, or, where heat binds, that is "
        "never above 85 C. paced s: time in which the governor asked for pacing, which this load does not obey.")
    parser.add_argument("--hours", type=float, default=2.0, help="simulated hours of each run (default 2)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="seeds of load and noise (1 2 3)")
    parser.add_argument("--modules", nargs="+", choices=sorted(CASES), default=list(CASES), help="which (default: all)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="runs at a time (default: the CPUs)")
    options = parser.parse_args(arguments)
    if not 0.05 <= options.hours <= 24 or options.jobs < 1:
        parser.error("--hours must lie in 0.05 to 24 and --jobs be at least 1")
    return options


if __name__ == "__main__":
    sys.exit(main())
