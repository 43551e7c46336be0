"""Scenario files of `scripts/hil`: steps on a board and limits for what is measured, checked whole when they are read.

Read by `hil.py`; what the figures mean is in hil_figures.py. Invariant: a file is taken whole or refused with every
mistake, each as `FILE:LINE: key: what to do`.
"""

from __future__ import annotations

import difflib
import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from hil_figures import FIGURES
from pydantic import Field, PlainValidator, ValidationError, model_validator

from orind.daemon.config_file import ConfigError, UnknownBoard, load_board, load_policy, read_yaml
from orind.daemon.sections import CameraName, Endpoint, Name, Section
from orind.kernels.yaml_lines import problems_of
from orind.power.board import BoardFacts
from orind.power.errors import SettingsError
from orind.power.policy import Policy
from orind.power.policy_check import check_policy

SECONDS_MAX = 7200.0
SLACK_MS = 200.0  # of a result that comes at the deadline, on its way
OPERATORS: dict[str, Callable[[float, float], bool]] = {
    "<=": operator.le, ">=": operator.ge, "==": operator.eq, "<": operator.lt, ">": operator.gt,
}
_LIMIT = re.compile(
    r"(?:([A-Za-z0-9_-]+)\.)?([a-z0-9_]+)\s*(<=|>=|==|<|>)\s*(-?[0-9]+(?:\.[0-9]+)?)(?:\s+on\s+(real|virtual))?"
)
ONLY_VIRTUAL = {"ambient_c": "a climate chamber", "extra_w": "a load on another rail", "fan_works": "a fan to stop"}


@dataclass(frozen=True, slots=True)
class Limit:
    """One figure, of a phase or ('') of the whole run, against a number. `on`: the board on which alone it is judged,
    or ''."""

    text: str
    phase: str
    figure: str
    sign: str
    bound: float
    on: str

    def holds(self, value: float) -> bool:
        return OPERATORS[self.sign](value, self.bound)


@dataclass(frozen=True, slots=True)
class Case:
    """A file that was read: the scenario, its text, the board's facts, and the policy as a plain table."""

    path: Path
    scenario: Scenario
    text: str
    facts: BoardFacts
    policy: dict[str, Any]


class CameraEntry(Section):
    rate_hz: float = Field(default=0, ge=0, le=1000, description="frames a second from the begin on")
    deadline_ms: float = Field(gt=0, le=60_000, description="from capture to result")


def _load(given: object) -> float | str:
    number = isinstance(given, int | float) and not isinstance(given, bool)
    if given != "full" and not (number and 0 <= given <= 1000):  # type: ignore[operator]
        raise ValueError(f"should be frames a second (0 to 1000) or full, got {given!r}")
    return given  # type: ignore[return-value]


def _sensor_fault(given: object) -> int | str:
    if given not in ("missing", "stuck") and type(given) is not int:
        raise ValueError(f"should be missing, stuck, or the whole number that the sensor's file shows, got {given!r}")
    return given  # type: ignore[return-value]


def _asked(given: object) -> float | str:
    number = isinstance(given, int | float) and not isinstance(given, bool)
    # YAML reads a bare `off` as false
    if given not in ("off", False) and not (number and 0 < given <= 200):  # type: ignore[operator]
        raise ValueError(f"should be W (0 to 200) or off, got {given!r}")
    return "off" if given is False else given  # type: ignore[return-value]


Load = Annotated[float | str, PlainValidator(_load)]
Asked = Annotated[float | str, PlainValidator(_asked)]
SensorFault = Annotated[int | str, PlainValidator(_sensor_fault)]


class Step(Section):
    """What happens at a moment; what is not named stays as it is."""

    at_s: float = Field(ge=0, le=SECONDS_MAX)
    phase: Name | None = Field(default=None, description="begins when this step is done, and lasts until the next")
    load: dict[CameraName, Load] | None = None
    kill: Literal["active", "standby"] | None = None
    reload: Literal[True] | None = None
    budget_w: float | None = Field(default=None, gt=0, le=200)
    ask_budget_w: Asked | None = None
    mode: str | None = None
    mode_behind: str | None = None
    sensors: dict[str, SensorFault] | None = None
    ambient_c: float | None = Field(default=None, ge=-40, le=80)
    extra_w: float | None = Field(default=None, ge=0, le=50)
    fan_works: bool | None = None

    def actions(self) -> list[str]:
        """The keys that do something."""
        return [name for name in type(self).model_fields if name not in ("at_s", "phase") and
                getattr(self, name) is not None]


class Trigger(Section):
    """A GPIO line that triggers a camera, whose program sends its frames (ROUTER) to `endpoint`."""

    camera: CameraName
    endpoint: Endpoint
    period_s: float = Field(gt=0, le=60)
    pulse_ms: float = Field(default=2, gt=0, le=1000)


class Scenario(Section):
    """A whole file."""

    title: str = Field(min_length=1, max_length=100)
    why: str = Field(default="", max_length=2000)
    board: Name = Field(description="of configs/boards; a real board must be this one")
    policy: str = Field(description="power policy file; relative to this file")
    seconds: float = Field(gt=0, le=SECONDS_MAX)
    ambient_c: float = Field(default=25, ge=-40, le=80)
    fan: Literal["quiet", "cool"] | None = Field(default=None, description="of a simulated board")
    trigger: Trigger | None = Field(default=None, description="of a wired board")
    cameras: dict[CameraName, CameraEntry] = Field(min_length=1)
    steps: list[Step] = Field(default_factory=list, max_length=200)
    limits: list[str] = Field(min_length=1, description="FIGURE SIGN NUMBER, of a phase as PHASE.FIGURE")

    @model_validator(mode="after")
    def _coherent(self) -> Scenario:
        problems = [*_steps_that_cannot_be(self), *_limits_that_cannot_be(self), *_trigger_that_cannot_be(self)]
        if problems:
            raise ValueError("\n".join(problems))
        return self

    def parsed_limits(self) -> list[Limit]:
        """The limits in the order of the file."""
        return [_parse(text) for text in self.limits]

    def not_on_real(self, ambient_c: float | None) -> str:
        """Why a real board at `ambient_c` (None: not known) cannot run it; '' where it can."""
        for step in self.steps:
            for key, what in ONLY_VIRTUAL.items():
                if getattr(step, key) is not None:
                    return f"needs {what} ({key} at {step.at_s:g} s)"
        if self.ambient_c != 25 and (ambient_c is None or abs(ambient_c - self.ambient_c) > 3):
            return f"needs an ambient temperature of {self.ambient_c:g} C; tell the true one with --ambient"
        return ""


def read(path: Path) -> Case:
    """A scenario and what it names. Raises ConfigError."""
    document = read_yaml(path)
    try:
        scenario = Scenario.model_validate(document.value)
    except ValidationError as error:
        raise ConfigError(problems_of(error, document, Scenario)) from None
    problems = list[str]()
    policy_path = path.resolve().parent / scenario.policy
    try:
        facts = load_board(scenario.board)[1]
        if not policy_path.is_file():
            raise ConfigError([f"{policy_path}: no such file; the path is relative to the scenario"])
        policy = load_policy(policy_path, facts, None)[0]
        problems += _not_on_board(scenario, facts, policy)
    except UnknownBoard as error:
        problems.append(f"board: {error}")
    except ConfigError as error:
        problems += [f"policy: {problem}" for problem in error.problems]
    if problems:
        raise ConfigError([f"{path}:{document.line_of_text(text)}: {text}" for text in problems])
    return Case(path, scenario, path.read_text(), facts, policy)


def _not_on_board(scenario: Scenario, facts: BoardFacts, policy: dict[str, Any]) -> Iterator[str]:
    """What the board's facts and the policy have no place for."""
    sensors = {*facts.rails, *(zone.name for zone in facts.zones)}
    modes = [mode.name for mode in facts.modes]
    for number, step in enumerate(scenario.steps):
        where = f"steps.{number}"
        for key in ("mode", "mode_behind"):
            if getattr(step, key) not in (None, *modes):
                yield f"{where}.{key}: {facts.title} has no mode '{getattr(step, key)}' (known: {', '.join(modes)})"
        for name in step.sensors or {}:
            if name not in sensors:
                yield f"{where}.sensors.{name}: {facts.title} has no such sensor (known: {', '.join(sorted(sensors))})"
        for key in ("budget_w", "ask_budget_w"):
            if not isinstance(budget_w := getattr(step, key), int | float):
                continue
            try:
                check_policy(Policy.from_dict({**policy, "budget_w": budget_w}), facts)
            except SettingsError as error:
                yield from (f"{where}.{key}: {p.text}" for p in error.problems)


def _steps_that_cannot_be(scenario: Scenario) -> Iterator[str]:
    before_s, seen = 0.0, set[str]()
    for number, step in enumerate(scenario.steps):
        where = f"steps.{number}"
        if step.at_s < before_s:
            yield f"{where}.at_s: {step.at_s:g} s is before the step above ({before_s:g} s); steps stand in order"
        before_s = max(before_s, step.at_s)
        if step.at_s >= scenario.seconds:
            yield f"{where}.at_s: {step.at_s:g} s is not within the run (seconds: {scenario.seconds:g})"
        if not step.actions() and step.phase is None:
            yield f"{where}: does nothing; give it a phase or an action ({', '.join(_actions())})"
        if step.phase in seen:
            yield f"{where}.phase: '{step.phase}' began before; give this part another name"
        seen.update([step.phase] if step.phase else [])
        for camera in step.load or {}:
            if camera not in scenario.cameras:
                yield f"{where}.load.{camera}: no such camera (known: {', '.join(scenario.cameras)})"


def _trigger_that_cannot_be(scenario: Scenario) -> Iterator[str]:
    trigger = scenario.trigger
    if trigger is None:
        return
    camera = scenario.cameras.get(trigger.camera)
    if camera is None:
        yield f"trigger.camera: no such camera (known: {', '.join(scenario.cameras)})"
        return
    if camera.rate_hz or any(trigger.camera in (step.load or {}) for step in scenario.steps):
        yield f"trigger.camera: frames of '{trigger.camera}' come from a real camera; give it no rate_hz and no load"
    if trigger.period_s * 1e3 < camera.deadline_ms + trigger.pulse_ms + SLACK_MS:
        yield (f"trigger.period_s: a result must be here before the next pulse: at least deadline_ms, pulse_ms and "
               f"{SLACK_MS:g} ms ({(camera.deadline_ms + trigger.pulse_ms + SLACK_MS) / 1e3:g} s)")


def _actions() -> list[str]:
    return [name for name in Step.model_fields if name not in ("at_s", "phase")]


def _limits_that_cannot_be(scenario: Scenario) -> Iterator[str]:
    phases = [step.phase for step in scenario.steps if step.phase]
    for number, text in enumerate(scenario.limits):
        where = f"limits.{number}"
        found = _LIMIT.fullmatch(text.strip())
        if found is None:
            yield f"{where}: {text!r} is no limit; write FIGURE SIGN NUMBER, such as 'full.tj_max_c <= 85'"
            continue
        phase, figure = found[1] or "", found[2]
        if figure not in FIGURES:
            near = difflib.get_close_matches(figure, FIGURES, 1, 0.5)
            hint = f"did you mean '{near[0]}'?" if near else f"known: {', '.join(FIGURES)}"
            yield f"{where}: unknown figure '{figure}'; {hint}"
        if phase and phase not in phases:
            yield f"{where}: no phase '{phase}' (known: {', '.join(phases) or 'none, a step names one'})"


def _parse(text: str) -> Limit:
    found = _LIMIT.fullmatch(text.strip())
    assert found is not None, "refused when the file was read"
    return Limit(" ".join(text.split()), found[1] or "", found[2], found[3], float(found[4]), found[5] or "")
