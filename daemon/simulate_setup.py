"""From the options of `orind simulate` to the parts of a run: board, policy, load, times, rules, faults.

Called by `simulate_command.py`. Invariant: everything is read and checked before anything is simulated, and a refusal
names the file and line, or the option, with what to do.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..ipc.exit_codes import Exit
from ..kernels.ir.errors import ProgramError
from ..kernels.ir.program import programs_from_text
from ..kernels.perf.device import Device, DeviceError
from ..kernels.plan.file import PlanFile
from ..kernels.plan.layout import PlanError
from ..kernels.plan.told import text_of
from ..power.board import BoardFacts, Mode
from ..power.budget import Asked, Outside
from ..power.errors import PowerError
from ..power.plant.fault_file import FaultState, fault_schedule
from ..power.plant.modes import widest_of
from ..power.plant.modules import MODULES
from ..power.plant.simulated import SimulatedBoard, simulated_board
from ..power.policy import Policy
from ..power.schedule import local_s
from ..power.simulation import ClosedLoop
from .config import Config
from .config_file import ConfigError, UnknownBoard, load, load_board, load_policy
from .deadline_floor import clock_for, cycles_of
from .panels import Mark
from .regular_file import CONFIGURATION_BYTES_MAX, NotRegular, check_regular
from .sections import Batching, EngineSection, Slots
from .serving_rules import batch_rule
from .simulate_line import LineRules, ServiceTimes, SimulatedLine
from .simulate_times import PlanTimes, StatedTimes
from .trace_file import ANY_CAMERA, Series, TraceError, read_ambient, read_load

SAID = "simulate"
BEGIN_NS = 1_000_000_000
ALWAYS_NS = 1 << 62
FRAMES_MAX = 20_000_000
"""Frames of a run: some minutes of work."""


class Refused(Exception):
    """The run cannot be made: exit code, and one line a mistake."""

    def __init__(self, code: Exit, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.code = code
        self.problems = problems


@dataclass(slots=True)
class Setup:
    """Everything of a run. `about`: the same in words and figures, for the report."""

    loop: ClosedLoop
    line: SimulatedLine
    length_s: float
    ambient_c: Callable[[float], float]
    faults: tuple[tuple[float, FaultState], ...]
    about: dict[str, Any]

    def marks(self) -> list[Mark]:
        """The faults, for the picture."""
        return [Mark(at_s, in_words(state)) for at_s, state in self.faults]


def set_up(options: argparse.Namespace) -> Setup:
    """Raises Refused."""
    try:
        board, facts, mode_name = load_board(options.board)
        policy = load_policy(options.policy, facts, facts.mode(mode_name))[1]
        config = None if options.config is None else load(options.config)
    except UnknownBoard as error:
        raise Refused(Exit.USAGE, [f"--board {options.board}: {error}"]) from None
    except ConfigError as error:
        raise Refused(Exit.CONFIGURATION, error.problems) from None
    length_s = options.hours * 3600
    try:
        load_trace = read_load(options.load)
        ambient = read_ambient(Path(options.ambient)) if isinstance(options.ambient, str) else options.ambient
    except TraceError as error:
        raise Refused(Exit.DATA, error.problems) from None
    load_trace, deadline_ns = _cameras(load_trace, config, options)
    _check_amount(load_trace, length_s, options.load)
    mode = facts.mode(mode_name) or widest_of(facts.name)
    simulated = simulated_board(facts, MODULES[facts.name], mode, 25.0, options.seed, options.fan, BEGIN_NS)
    simulated.model.ambient_c = ambient.interpolated(0.0) if isinstance(ambient, Series) else ambient
    rules = _rules(config)
    times = _times(options, board, mode, simulated, rules)
    faults = () if options.faults is None else _faults(options.faults, simulated)
    line = SimulatedLine(load_trace, deadline_ns, times, rules, simulated.now_ns, options.seed)
    start_s = _start(options, policy)
    about = {**_about(facts, policy, mode, options), "top_mhz": simulated.gpu_clocks_hz()[-1] / 1e6,
             "frame_time": times.what, "load": _load_in_words(load_trace, deadline_ns, rules, options.load),
             "ambient": _ambient_in_words(ambient, options.ambient)}
    promised = [ns for name, ns in deadline_ns.items()
                if config is None or config.cameras[name].priority != "best_effort"]
    tightest_ns = min(promised, default=ALWAYS_NS)
    tell = lru_cache(64)(lambda hz, ambient_c, wall_s: _outside(hz, ambient_c, wall_s, times, tightest_ns))

    def told() -> Outside:
        wall_s = None if start_s is None else start_s + (simulated.now_ns - BEGIN_NS) / 1e9
        return tell(simulated.cap_hz, simulated.model.ambient_c, wall_s)

    loop = ClosedLoop(facts, policy, simulated, told)
    return Setup(loop, line, length_s,
                 ambient.interpolated if isinstance(ambient, Series) else lambda _: ambient, faults, about)


def _outside(cap_hz: int, ambient_c: float, wall_s: float | None, times: ServiceTimes, tightest_ns: int) -> Outside:
    """What the governor is told: the ambient temperature as it is, the time of the day where it was said, and what main
    tells it of frames and deadlines."""
    size = times.sizes[0]
    took_ns = times.at(cap_hz)[size]
    return Outside(
        wall_s,
        ambient=Asked(round(ambient_c * 1000), ALWAYS_NS, SAID),
        deadline=Asked(clock_for(tightest_ns, cap_hz, took_ns), ALWAYS_NS, SAID),
        frame=Asked(int(cycles_of(cap_hz, took_ns, size)), ALWAYS_NS, SAID),
    )


def _start(options: argparse.Namespace, policy: Policy) -> float | None:
    """The run's begin in s since 1970 UTC; None where neither is said nor needed."""
    if policy.schedule is None:
        if options.start is not None:
            raise Refused(Exit.USAGE, [f"--start {options.start}: {options.policy} has no schedule; leave it out"])
        return None
    zone = policy.schedule.time_zone
    if options.start is None:
        raise Refused(Exit.USAGE, [f"{options.policy} has a schedule: say with --start when the run begins, as "
                                   f"2026-03-02T06:00, in the time of {zone}"])
    try:
        return local_s(options.start, zone)
    except ValueError:
        raise Refused(Exit.USAGE, [f"--start {options.start}: must be as 2026-03-02T06:00, and an hour "
                                   f"that there is in {zone}"]) from None


def _cameras(load_trace: Mapping[str, Series], config: Config | None,
             options: argparse.Namespace) -> tuple[Mapping[str, Series], dict[str, int]]:
    """The load with its cameras' names, and their deadlines from capture in ns."""
    if config is None:
        return load_trace, {name: int(options.deadline_ms * 1e6) for name in load_trace}
    known = ", ".join(config.cameras)
    if ANY_CAMERA in load_trace:
        if len(config.cameras) > 1:
            raise Refused(Exit.DATA, [f"{options.load}: {options.config} has several cameras ({known}): add a column "
                                      "`camera` that says whose frames they are"])
        load_trace = {next(iter(config.cameras)): load_trace[ANY_CAMERA]}
    problems = [f"{options.load}: {options.config} has no camera {name!r} (known: {known})"
                for name in load_trace if name not in config.cameras]
    if problems:
        raise Refused(Exit.DATA, problems)
    return load_trace, {name: int(config.cameras[name].deadline_ms * 1e6) for name in load_trace}


def _check_amount(load_trace: Mapping[str, Series], length_s: float, path: Path) -> None:
    """Refuses a load that would take longer than anybody waits."""
    frames = 0.0
    for series in load_trace.values():
        at_s, rate = 0.0, 0.0
        for from_s, value in series.steps():
            frames += rate * (min(from_s, length_s) - at_s)
            if from_s >= length_s or frames > FRAMES_MAX:
                break
            at_s, rate = from_s, value
        else:
            frames += rate * (length_s - at_s)
    if frames > FRAMES_MAX:
        raise Refused(Exit.DATA, [f"{path}: that are more than {FRAMES_MAX} frames; lower the rates, or --hours"])


def _rules(config: Config | None) -> LineRules:
    """Of the configuration, or those that a configuration has where it says nothing."""
    batching, engine, slots = Batching(), EngineSection(), Slots()
    if config is not None:
        batching, engine, slots = config.batching, config.engine, config.slots
    return LineRules(batch_rule(batching), engine.queue_depth, slots.count)


def _times(options: argparse.Namespace, board: dict[str, Any], mode: Mode, simulated: SimulatedBoard,
           rules: LineRules) -> ServiceTimes:
    if options.plan is None:
        frame_ms, mhz = options.frame_ms
        return StatedTimes(frame_ms, mhz, rules.batch.max_size)
    try:
        with PlanFile.open_path(options.plan) as plan:
            plan.verify()
            programs = programs_from_text(text_of(plan, "program"))
        if not programs:
            raise PlanError("it holds no program: make it with orind build")
        device = Device.from_dict(board, mode.name)
    except (PlanError, ProgramError) as error:
        path = "" if str(options.plan) in str(error) else f"{options.plan}: "
        raise Refused(Exit.DATA, [f"{path}{error}"]) from None
    except DeviceError as error:
        raise Refused(Exit.USAGE, [f"--board {options.board}: {error}"]) from None
    if min(programs) > rules.batch.max_size:
        raise Refused(Exit.CONFIGURATION, [f"{options.plan}: its smallest batch is {min(programs)}, "
                                           f"batching.max_size is {rules.batch.max_size}: name a configuration that "
                                           "allows it (--config)"])
    return PlanTimes(options.plan.name, programs, device, simulated.gpu_clocks_hz())


def _faults(path: Path, simulated: SimulatedBoard) -> tuple[tuple[float, FaultState], ...]:
    try:
        check_regular(str(path), CONFIGURATION_BYTES_MAX)
        found = fault_schedule(path.read_text())
        constants = simulated.model.constants
        known = {*constants.rails, *constants.zones, "tj"}
        for at_s, state in found:
            if unknown := state.sensors - known:
                raise PowerError(f"at {at_s:g} s: there is no sensor {sorted(unknown)[0]!r} "
                                 f"(known: {', '.join(sorted(known))})")
            if state.of_files:
                raise PowerError(f"at {at_s:g} s: {state.of_files[0]} is for a board with files, which "
                                 "python -m orind.power.plant makes; take it out")
            if state.ambient_c is not None:
                raise PowerError(f"at {at_s:g} s: take ambient_c out and give --ambient a file with a time series")
    except (PowerError, NotRegular, ValueError) as error:
        raise Refused(Exit.DATA, [f"{path}: {error}"]) from None
    return found


# -- in words ------------------------------------------------------------------------------------------------------


def _about(facts: BoardFacts, policy: Policy, mode: Mode, options: argparse.Namespace) -> dict[str, Any]:
    return {
        "board": facts.name, "title": facts.title, "mode": mode.name, "policy": policy.name, "seed": options.seed,
        "start": options.start,
        "fan": options.fan or MODULES[facts.name].fan_profile, "tick_ms": policy.tick_ns / 1e6,
        "budget_w": policy.budget_mw / 1000, "tolerance_w": policy.tolerance_mw / 1000,
        "tj_warn_c": policy.tj_warn_mc / 1000, "tj_limit_c": policy.tj_limit_mc / 1000,
        "quiet_tj_limit_c": None if policy.quiet is None else policy.quiet.tj_limit_mc / 1000,
        "throttle_c": facts.throttle_mc / 1000,
    }


def _load_in_words(load_trace: Mapping[str, Series], deadline_ns: Mapping[str, int], rules: LineRules,
                   path: Path) -> str:
    of = "" if set(load_trace) == {ANY_CAMERA} else f" of {', '.join(sorted(load_trace))}"
    deadlines = ", ".join(f"{ns / 1e6:g}" for ns in sorted(set(deadline_ns.values())))
    repeat_s = max(series.repeat_s for series in load_trace.values())
    goes_on = f"again every {repeat_s:g} s" if repeat_s else "its last line holds to the end"
    return (f"{path.name}{of}, {goes_on}; deadline {deadlines} ms, batches of up to {rules.batch.max_size}, "
            f"{rules.slots} slots")


def _ambient_in_words(ambient: Series | float, given: object) -> str:
    if not isinstance(ambient, Series):
        return f"{ambient:g} C"
    return f"{Path(str(given)).name}, {min(ambient.values):g} to {max(ambient.values):g} C"


def in_words(state: FaultState) -> str:
    """A fault for the picture's margin."""
    found = [] if state.fan_works else ["fan dead"]
    found += [f"{name} lost" for name in state.missing] + [f"{name} stuck" for name in state.stuck]
    found += [f"{name} shows {value:g}" for name, value in state.forced.items()]
    found += [f"{name} {seconds:g} s late" for name, seconds in state.slow_s.items()]
    found += ["writes refused"] if state.refuse_writes else []
    found += [f"{state.extra_w:+g} W"] if not math.isclose(state.extra_w, 0.0) else []
    found += [] if state.reset_mode is None else [f"mode {state.reset_mode[0]} set"]
    return ", ".join(found) or "no fault"
