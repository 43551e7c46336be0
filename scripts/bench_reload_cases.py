"""What scripts/bench_reload reloads: good configurations in turn, and bad ones of every kind that we know of.

A bad case spoils a file, a plan, a port, memory or a process, says by which words its refusal is known, and mends what
it did. Invariant: no two cases are refused in the same place for the same reason.
"""

from __future__ import annotations

import copy
import json
import os
import re
import resource
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from built_plans import face_plan, identity_plan, part_plan
from harness import Service

from orind.kernels.plan.file import PlanFile, write_plan

LOOK_S = 0.0005
SPARE_BYTES = 64 << 20  # enough for the checker; an engine maps the frame slots too


@dataclass(frozen=True)
class Plans:
    """The part detector, the same calibrated on other pictures, a face detector, and a plan that takes tensors."""

    first: Path
    second: Path
    other: Path
    tensor: Path

    @classmethod
    def build(cls) -> Plans:
        return cls(part_plan(), part_plan(variant=1), face_plan(), identity_plan(4))


def good(plans: Plans, number: int, deadline_ms: float) -> dict[str, Any]:
    """The configuration of reload `number`: model, size, batch limit, depth and shares change, each in its own turn."""
    names: list[dict[str, Path]] = [
        {"v1": plans.first}, {"v1": plans.second}, {"v1": plans.other}, {"v1": plans.first, "v2": plans.second},
        {"v1": plans.second},
    ]
    models = names[number % len(names)]
    shares = {"v1": 90, "v2": 10} if "v2" in models else "v1"
    return {
        "models": {name: {"plan": str(plan)} for name, plan in models.items()},
        "cameras": {"line1": {"model": shares, "deadline_ms": deadline_ms}},
        "batching": {"mode": "window", "max_size": (1, 4)[number % 2], "window_ms": 2},
        "engine": {"queue_depth": 1 + number // 2 % 2},
    }


CYCLE = 20  # after so many reloads the turns of `good` begin anew


class Bench:
    """What a case works on: the daemon, its good configuration as text and as data, a folder for spoilt plans."""

    def __init__(self, service: Service, plans: Plans, folder: Path, number: int) -> None:
        self.service, self.plans, self.folder, self.number = service, plans, folder, number
        self.text = service.config_path.read_text()
        self.data: dict[str, Any] = yaml.safe_load(self.text)
        self.served = Path(next(iter(self.data["models"].values()))["plan"])

    def write(self, change: Callable[[dict[str, Any]], object]) -> None:
        """The good configuration with one change."""
        changed = copy.deepcopy(self.data)
        change(changed)
        self.service.write_config(yaml.safe_dump(changed, sort_keys=False))

    def serve_plan(self, content: bytes) -> None:
        """The first model has a plan file of this content, at a new path."""
        path = self.folder / f"spoilt-{self.number}.plan"
        path.write_bytes(content)
        self.write(lambda c: c["models"]["v1"].update(plan=str(path)))

    @property
    def nursery(self) -> int:
        return int(_children(self.service.pid)[0])


@dataclass(frozen=True)
class Bad:
    """One kind. `says`: a pattern that the refusal must match. `spoil` is entered for the time of the reload."""

    name: str
    says: str
    spoil: Callable[[Bench], Any]


def _children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


# -- the configuration's text --------------------------------------------------------------------------------------


def _text(change: Callable[[str], str]) -> Callable[[Bench], None]:
    return lambda bench: bench.service.write_config(change(bench.text))


def _data(change: Callable[[dict[str, Any]], object]) -> Callable[[Bench], None]:
    return lambda bench: bench.write(change)


def _camera(**values: Any) -> Callable[[Bench], None]:
    return _data(lambda c: c["cameras"]["line1"].update(values))


def _section(name: str, **values: Any) -> Callable[[Bench], None]:
    return _data(lambda c: c.setdefault(name, {}).update(values))


def _latin(bench: Bench) -> None:
    bench.service.config_path.write_bytes(bench.text.encode() + b"# \xe9\n")


@contextmanager
def _gone(bench: Bench) -> Iterator[None]:
    bench.service.config_path.unlink()
    yield


@contextmanager
def _pipe(bench: Bench) -> Iterator[None]:
    bench.service.config_path.unlink()
    os.mkfifo(bench.service.config_path)
    yield
    bench.service.config_path.unlink()


@contextmanager
def _port_in_use(bench: Bench) -> Iterator[None]:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        endpoint = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        bench.write(lambda c: c["sources"].append({"name": "more", "endpoint": endpoint}))
        yield


# -- plans ---------------------------------------------------------------------------------------------------------


def _middle(plan: bytes) -> int:
    """A byte in the middle of a plan's largest weight tensor (read as safetensors files are)."""
    (length,) = struct.unpack("<Q", plan[:8])
    header = json.loads(plan[8 : 8 + length])
    del header["__metadata__"]
    spans = {name: e["data_offsets"] for name, e in header.items() if not name.startswith(("golden.", "orind."))}
    begin, end = max(spans.values(), key=lambda span: span[1] - span[0])
    return int(8 + length + (begin + end) // 2)


def _flipped(bench: Bench) -> None:
    content = bytearray(bench.served.read_bytes())
    content[_middle(bytes(content)) + bench.number] ^= 0x10
    bench.serve_plan(bytes(content))


def _wrong_golden(bench: Bench) -> None:
    """A whole plan, its hashes right, whose golden output is not what its program computes."""
    path = bench.folder / f"golden-{bench.number}.plan"
    with PlanFile.open_path(bench.served) as plan:
        tensors = {name: t.copy() for name, t in plan.tensors.items()}
        metadata = {key: text for key, text in plan.metadata.items() if key not in ("format", "crc32")}
    output = tensors["golden.output.0"]
    output.flat[0] = output.flat[0] + 100
    write_plan(path, tensors, metadata)
    bench.write(lambda c: c["models"]["v1"].update(plan=str(path)))


def _other_version(bench: Bench) -> None:
    bench.serve_plan(bench.served.read_bytes().replace(b"orind-plan-1", b"orind-plan-9"))


def _misfit(bench: Bench) -> None:
    def change(config: dict[str, Any]) -> None:
        config["models"]["other"] = {"plan": str(bench.plans.tensor)}
        config["cameras"]["line1"]["model"] = {"v1": 1, "other": 1}

    bench.write(change)


@contextmanager
def _served_spoilt(bench: Bench, spoil: Callable[[Path], None]) -> Iterator[None]:
    """The plan that serves, spoilt in place: the daemon has it in sealed memory."""
    copy_of, path = bench.served.read_bytes(), bench.folder / f"served-{bench.number}.plan"
    path.write_bytes(copy_of)
    bench.write(lambda c: c["models"]["v1"].update(plan=str(path)))
    done = bench.service.reload()
    if not done["ok"]:
        raise SystemExit(f"a copy of the plan that serves was refused: {done}")
    spoil(path)
    yield


def _overwrite(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(_middle(path.read_bytes()))
        file.write(os.urandom(64))


def _truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


# -- processes -----------------------------------------------------------------------------------------------------


@contextmanager
def _starved(bench: Bench) -> Iterator[None]:
    """The nursery's next children have hardly more address space than it has."""
    status = Path(f"/proc/{bench.nursery}/status").read_text()
    size = int(status.partition("VmSize:")[2].split()[0]) << 10
    resource.prlimit(bench.nursery, resource.RLIMIT_AS, (size + SPARE_BYTES, resource.RLIM_INFINITY))
    bench.service.write_config(bench.text)
    try:
        yield
    finally:
        resource.prlimit(bench.nursery, resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


@contextmanager
def _killed(bench: Bench, name: str) -> Iterator[None]:
    """The first new child of this name is killed as soon as it is there."""
    before, over = set(_children(bench.nursery)), threading.Event()

    def hunt() -> None:
        while not over.is_set():
            for pid in set(_children(bench.nursery)) - before:
                try:
                    if Path(f"/proc/{pid}/comm").read_text().strip() == name:
                        os.kill(int(pid), signal.SIGKILL)
                        return
                except OSError:
                    continue  # it has ended
            time.sleep(LOOK_S)

    bench.service.write_config(bench.text)
    hunter = threading.Thread(target=hunt)
    hunter.start()
    try:
        yield
    finally:
        over.set()
        hunter.join()


def _many_models(config: dict[str, Any]) -> None:
    config["models"] |= {f"m{n}": config["models"]["v1"] for n in range(30)}


LOST = r"a new engine was lost before it served: "
BAD = [
    Bad("a bracket never closed", r"orind\.yaml:\d+: not valid YAML: expected",
        _text(lambda t: t.replace("models:", "models: ["))),
    Bad("a tab", r"orind\.yaml:\d+: not valid YAML: found character", _text(lambda t: t.replace("  ", "\t", 1))),
    Bad("an unknown key", r"did you mean 'models'", _text(lambda t: t + "modles: {}\n")),
    Bad("a key twice", r"duplicate key", _text(lambda t: t + "models: {}\n")),
    Bad("no UTF-8", r"not UTF-8", _latin),
    Bad("an empty file", r"expected a table", _text(lambda t: "")),
    Bad("no such file", r"No such file", _gone),
    Bad("a pipe", r"is no regular file", _pipe),
    Bad("a text for a number", r"cameras\.line1\.deadline_ms: .*valid number", _camera(deadline_ms="fast")),
    Bad("a number out of bounds", r"cameras\.line1\.deadline_ms: .*greater than 0", _camera(deadline_ms=-1)),
    Bad("a required key missing", r"cameras: required key is missing", _data(lambda c: c.pop("cameras"))),
    Bad("a model that there is not", r"cameras\.line1\.model: no model 'v9'", _camera(model="v9")),
    Bad("shares of nothing", r"the shares add up to 0", _camera(model={"v1": 0})),
    Bad("too many models", r"models: .*at most 24", _data(_many_models)),
    Bad("time-outs: heartbeat", r"engine\.heartbeat_missed_ms: .*engine\.heartbeat_ms",
        _section("engine", heartbeat_ms=500, heartbeat_missed_ms=400)),
    Bad("time-outs: drain", r"stop\.drain_timeout_s: .*engine\.batch_watchdog_ms", _section("stop", drain_timeout_s=1)),
    Bad("an endpoint twice", r"the endpoint '.*' is used twice",
        _data(lambda c: c["sources"].append({**c["sources"][0], "name": "again"}))),
    Bad("an endpoint without a port", r"sources\.1\.endpoint: .*tcp needs a port",
        _data(lambda c: c["sources"].append({"name": "more", "endpoint": "tcp://127.0.0.1"}))),
    Bad("a port in use", r"in use", _port_in_use),
    Bad("a board that there is not", r"power\.board: no board 'mars'",
        _section("power", board="mars", policy="none.yaml")),
    Bad("a policy that there is not", r"power\.policy: .*no such file",
        _section("power", board="agx-orin", policy="none.yaml")),
    Bad("steps for no device", r"engine\.cpu_steps: allow is for", _section("engine", cpu_steps="allow")),
    Bad("a missing plan", r"models\.v1\.plan: .*No such file",
        _data(lambda c: c["models"]["v1"].update(plan="none.plan"))),
    Bad("a folder for a plan", r"models\.v1\.plan: ", _data(lambda c: c["models"]["v1"].update(plan="/"))),
    Bad("a plan with a flipped bit", r"is damaged in tensor", _flipped),
    Bad("a plan cut short", r"is truncated", lambda b: b.serve_plan(b.served.read_bytes()[: 100_000 + b.number])),
    Bad("no plan at all", r"not a plan", lambda b: b.serve_plan(b"MZ" * 5000)),
    Bad("a plan of another version", r"orind-plan-9", _other_version),
    Bad("versions that do not fit", r"cameras\.line1\.model: other is of task tensor", _misfit),
    Bad("the served plan overwritten", r"is damaged in tensor", lambda b: _served_spoilt(b, _overwrite)),
    Bad("the served plan cut short", r"is truncated", lambda b: _served_spoilt(b, _truncate)),
    Bad("a wrong golden answer", LOST + r".*golden", _wrong_golden),
    Bad("a CPU that there is not", r"engine\.cpus: there is no CPU 4095", _section("engine", cpus=[4095])),
    Bad("no memory for engines", LOST + r".*memory", _starved),
    Bad("an engine that dies at its start", LOST + r"its process ended", lambda b: _killed(b, "orind-engine")),
    Bad("the checker dies", r"the checker process ended", lambda b: _killed(b, "orind-checker")),
]


def matches(case: Bad, said: str) -> bool:
    return re.search(case.says, said) is not None
