"""The short-lived process that reads and checks a configuration and everything it names.

Started by the nursery for main (`python -m orind.daemon.checker FD CONFIG`), and called by `orind check`. It verifies
every plan's hash and copies it once into a sealed memfd, so that main and engines see files that can no longer change.
Invariant: it answers exactly once, with the whole configuration or with every mistake that can be told: what settings
say of each other is looked at where each of them is well formed.
"""

from __future__ import annotations

import errno
import json
import math
import os
import socket
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..ipc import meminfo
from ..ipc.bounded_text import bound_texts
from ..ipc.errors import IpcError
from ..ipc.fd_passing import send_with_fds
from ..kernels.footprint import device_bytes, host_bytes
from ..kernels.ir.errors import ProgramError
from ..kernels.model import interface_of
from ..kernels.plan.layout import PlanError
from ..kernels.plan.memfd import seal_into_memfd
from ..kernels.pre import jpeg
from ..kernels.pre.outputs import DecoderError
from ..kernels.spec import TENSOR_TASKS, ModelSpec, SpecError
from . import unit_file
from .config import Config
from .config_file import ConfigError, PowerFiles, load, load_power, named_plans, with_lines
from .device_fit import library_problems, plan_problem
from .lifeline import begin_child, go_before_main
from .plans import ServedPlan
from .priority import stand_back
from .regular_file import NotRegular, check_regular
from .run_directory import problem as run_dir_problem
from .sections import EngineSection
from .shortages import passes
from .unit_limits import contradictions


@dataclass(slots=True)
class Checked:
    """A configuration that can be served, or the reasons why not (`problems` is not empty then). `passing`: all of them
    are shortages, and the same configuration may be fit to serve a moment later."""

    problems: list[str] = field(default_factory=list)
    passing: bool = False
    config: Config | None = None
    power: PowerFiles | None = None
    plans: list[ServedPlan] = field(default_factory=list)

    def close(self) -> None:
        for plan in self.plans:
            os.close(plan.fd)
        self.plans.clear()


def check(path: Path) -> Checked:
    """Read, verify, seal. Never raises for bad input: every mistake lands in `problems`."""
    result, shortages = Checked(), 0
    try:
        result.config = load(path)
        result.power = load_power(result.config)
    except ConfigError as error:
        result.problems += error.problems
        shortages += len(error.problems) if passes(error) else 0
    if result.config is None:
        if named := named_plans(path):
            shortages += _open_plans(result, named, None)
            result.problems = with_lines(path, result.problems)
    else:
        named = {name: entry.plan for name, entry in result.config.models.items()}
        shortages += _open_plans(result, named, result.config.engine)
        result.problems += _misfits(result.config, result.plans)
        if unfit := run_dir_problem(Path(result.config.run_dir)):
            result.problems.append(unfit)
        result.problems += library_problems(result.config.engine)
        if result.config.decode.workers and not jpeg.available():
            result.problems.append(f"decode.workers: {jpeg.REMEDY}, or set it to 0 to serve no JPEG")
        if (unit := unit_file.of_configuration(path)) is not None:
            result.problems += contradictions(result.config, unit)
        result.problems = with_lines(path, result.problems)
    if result.problems:
        result.passing = shortages == len(result.problems)
        result.close()
    return result


def _open_plans(result: Checked, named: Mapping[str, str], engine: EngineSection | None) -> int:
    """Into `result`. How many of the problems are shortages."""
    shortages = 0
    for name, path in named.items():
        try:
            result.plans.append(_open_plan(name, path, engine))
        except (PlanError, SpecError, ProgramError, DecoderError, NotRegular, IpcError, OSError) as error:
            result.problems.append(f"models.{name}.plan: {_text(error, path)}")
            shortages += passes(error)
    return shortages


def _open_plan(name: str, path: str, engine: EngineSection | None) -> ServedPlan:
    """`engine`: None where it is not known what the plan is to run on."""
    check_regular(path)
    _check_room(Path(path))
    fd, plan = seal_into_memfd(path)
    try:
        for part in ("spec", "program"):
            if part not in plan.metadata:
                raise PlanError(f"{path}: it holds no {part}: make it with orind build")
        spec = ModelSpec.from_json(plan.metadata["spec"])
        interface = interface_of(plan, spec)
        if engine is not None and (unfit := plan_problem(plan, engine)):
            raise ProgramError(f"{path}: {unfit}")
        held = host_bytes(plan), device_bytes(plan)
        return ServedPlan(name, fd, path, plan.sha256, plan.size, spec, interface, *held)
    except BaseException:
        os.close(fd)
        raise
    finally:
        plan.close()


def _check_room(path: Path) -> None:
    """Where the plan's copy in memory does not fit the kernel would kill for it, not refuse it. Raises OSError (ENOMEM)
    where others have what it needs, IpcError where this machine never has it."""
    size, available = path.stat().st_size if path.is_file() else 0, meminfo.room()
    if size > available:
        text = f"its copy in memory takes {size} bytes, {available} are available"
        raise OSError(errno.ENOMEM, text) if size <= meminfo.read().total else IpcError(text)


def _text(error: Exception, path: str) -> str:
    text = error.strerror or str(error) if isinstance(error, OSError) else str(error)
    return text if path in text else f"{path}: {text}"


def _input_bytes(plan: ServedPlan) -> int:
    """Of a tensor model, whose input has one size; 0 for pictures, which come in any."""
    if plan.spec.task != "tensor":
        return 0
    return math.prod(plan.interface.input_shape) * np.dtype(plan.interface.input_dtype).itemsize


def _misfits(config: Config, plans: list[ServedPlan]) -> list[str]:
    """Settings that only the plans, or the machine, can contradict."""
    found, count = [], os.sysconf("SC_NPROCESSORS_CONF")
    for key, cpus in (("engine.cpus", config.engine.cpus), ("realtime.cpus", config.realtime.cpus)):
        if absent := [cpu for cpu in cpus if not 0 <= cpu < count]:
            found.append(f"{key}: there is no CPU {', '.join(map(str, absent))}, this machine has 0 to {count - 1}")
    for plan in plans:
        smallest = min(plan.spec.batch)
        if smallest > config.batching.max_size:
            found.append(
                f"models.{plan.name}.plan: its smallest batch is {smallest}, "
                f"batching.max_size is {config.batching.max_size}"
            )
        needs = _input_bytes(plan)
        if needs > config.slots.bytes:
            found.append(
                f"slots.bytes: {config.slots.bytes} do not hold an input of models.{plan.name}, which has {needs}: no "
                "frame of it could come in"
            )
    by_name = {plan.name: plan for plan in plans}
    for name, camera in config.cameras.items():
        versions = [by_name[model] for model in camera.model if model in by_name]
        found += [
            f"cameras.{name}.model: {other.name} {_form(other)}, {versions[0].name} {_form(versions[0])}: versions "
            "that share a camera take and give the same"
            for other in versions[1:]
            if _form(other) != _form(versions[0])
        ]
    return found


def _form(plan: ServedPlan) -> str:
    """What a camera and those who read its results see of a model, in words."""
    interface = plan.interface
    if plan.spec.task not in TENSOR_TASKS:
        return f"is of task {plan.spec.task}"
    taken, given = list(interface.input_shape), list(interface.tensor_shape)
    return f"is of task {plan.spec.task}, takes {interface.input_dtype} {taken}, gives {given}"


def describe(checked: Checked) -> dict[str, Any]:
    """What `Checked` says, without descriptors, for the wire to main and for `orind check --json`."""
    return {
        "problems": bound_texts(checked.problems),
        "passing": checked.passing,
        "config": checked.config.model_dump() if checked.config is not None and not checked.problems else None,
        "power": None if checked.power is None else asdict(checked.power),
        "plans": [plan.to_dict() for plan in checked.plans],
    }


def main() -> int:
    begin_child()
    go_before_main()
    stand_back()
    channel = socket.socket(fileno=int(sys.argv[1]))
    checked = check(Path(sys.argv[2]))
    answer = os.memfd_create("orind-checked", os.MFD_CLOEXEC)
    with channel, os.fdopen(answer, "wb") as file:
        file.write(json.dumps(describe(checked)).encode())
        file.flush()
        send_with_fds(channel, {"op": "checked"}, [answer, *(p.fd for p in checked.plans)])
    return 0


if __name__ == "__main__":
    sys.exit(main())
