"""One scenario on one board: a real daemon, cameras, the steps at their times, and everything that was seen.

Called by `hil.py`. Invariant: whatever happens, daemon and board are closed at the end; what must never be (a lost
frame, books that do not add up, an action that failed, a cap that was left behind) is noted in `Run.wrong` and the run
goes on.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hil_settings
import yaml
from built_plans import part_pictures, part_plan
from camera_load import Load
from harness import DEFAULTS, Service, ServiceError, account_gap
from hil_board import Board
from hil_figures import Frame, Run, Sample
from hil_scenario import Scenario, Step, Trigger
from hil_trigger import Line, Pulses

from orind.ipc.errors import ControlError, StatsPageError
from orind.ipc.stats_page import StatsReader
from orind.power.board import BoardFacts
from orind.power.errors import PowerError, SysfsError
from orind.power.sensors import Sensors
from orind.power.sysfs import Sysfs

SAMPLE_S = 0.1
FULL_WINDOW = 3
ANSWERS_S = 30.0
RELOAD_S = 60.0
SUBSCRIBED_S = 5.0
WIRED_SLOTS = {"count": 8, "bytes": 32 << 20}  # a camera's frame may be large
# Watchdogs for a shared machine, as in harness.DEFAULTS; what the scenario's power section adds stands in `configure`.
ENGINE = {"golden_interval_s": 20, "batch_watchdog_ms": 3000, "heartbeat_missed_ms": 1000, "golden_timeout_ms": 10_000}


class Sampler(threading.Thread):
    """Board and daemon ten times a second; the daemon is not asked, its stats page is read."""

    def __init__(self, root: Path, facts: BoardFacts, stats_page: str, began_s: float) -> None:
        super().__init__(name="sampler", daemon=True)
        self.samples: list[Sample] = []
        self.error = ""
        self._sensors, self._facts, self._sysfs = Sensors(root, facts), facts, Sysfs(root)
        self._page = StatsReader(os.open(stats_page, os.O_RDONLY | os.O_CLOEXEC))
        self._began_s = began_s
        self._over = threading.Event()
        self._last: tuple[int, int] | None = None

    def run(self) -> None:
        due_s = time.monotonic()
        while not self._over.wait(max(0.0, due_s - time.monotonic())):
            due_s = max(due_s + SAMPLE_S, time.monotonic())
            try:
                self.samples.append(self._sample())
            except StatsPageError:
                continue  # main is writing
            except Exception as error:  # noqa: BLE001 whatever it is, the report names it
                self.error = f"sampling failed: {type(error).__name__}: {error}"
                return
        self._page.close()

    def _sample(self) -> Sample:
        seen, status, counters = self._sensors.read(), self._page.read_blob(), self._page.read_counters()
        last, self._last = self._last, (counters.now_ns, counters.busy_ns)
        lasted = 0 if last is None else counters.now_ns - last[0]
        power = status["power"]
        zones = list(seen.zones_mc.values())
        return Sample(
            at_s=time.monotonic() - self._began_s,
            board_w=None if seen.board_mw is None else seen.board_mw / 1e3,
            tj_c=max(zones) / 1e3 if zones else None,
            gpu_mhz=None if seen.gpu_hz is None else seen.gpu_hz / 1e6,
            cap_mhz=self._cap_mhz(),
            fan_pwm=seen.fan_pwm,
            busy=None if last is None or lasted <= 0 else min((counters.busy_ns - last[1]) / lasted, 1.0),
            budget_w=power["budget_w"] or 0.0,
            state=status["state"],
            healthy=status["health"]["ok"],
            level=status["degradation"]["level"],
            failovers=status["failovers"],
            generation=status["generation"],
            alarms=tuple(power.get("faults") or ()),
        )

    def _cap_mhz(self) -> float | None:
        """None where it cannot be read: in a plain file a writer may be between truncating and writing."""
        try:
            return self._sysfs.read_int(f"{self._sysfs.find_devfreq(self._facts.gpu_nodes)}/max_freq") / 1e6
        except SysfsError:
            return None

    def stop(self) -> None:
        self._over.set()
        self.join(10)


class Runner:
    """Plays a scenario. `out`: the folder for everything that is kept; `work`: short paths for sockets, thrown away."""

    def __init__(self, scenario: Scenario, board: Board, facts: BoardFacts, policy: dict[str, Any], device: str,
                 work: Path, out: Path, on_started: Callable[[int], None], wiring: str) -> None:
        """on_started: told the daemon's process id before anything is changed. wiring: the line of `trigger`, or ''."""
        self._scenario, self._board, self._facts, self._policy = scenario, board, facts, policy
        self._device, self._work, self._out, self._on_started = device, work, out, on_started
        self._run = Run(tolerance_w=float(policy.get("tolerance_w", 1.5)))
        self._wiring = wiring
        self._loads: dict[str, Load] = {}
        self._pulses: Pulses | None = None
        self._began_s = 0.0

    def run(self) -> Run:
        """Raises ServiceError, RecordError or PowerError when board or daemon do not start at all."""
        run = self._run
        with contextlib.ExitStack() as stack:
            stack.callback(self._keep)
            self._board.open()
            stack.callback(self._board.close)
            before = hil_settings.record(self._board.root, self._facts.gpu_nodes)
            service = Service(self._work / "daemon", self._config())
            stack.callback(service.kill)
            service.launch()
            self._on_started(service.pid)
            service.await_state()
            with contextlib.ExitStack() as wires:
                self._play(service, wires)
            try:
                if code := service.stop():
                    run.wrong.append(f"the daemon ended with {code}")
            except ServiceError as error:
                run.wrong.append(str(error).splitlines()[0])
            after = hil_settings.record(self._board.root, self._facts.gpu_nodes)
            run.wrong += hil_settings.left_behind(before, after, self._moves_mode())
        return run

    # -- the daemon ----------------------------------------------------------------------------------------------

    def _config(self) -> dict[str, Any]:
        self._write_policy()
        cameras = {name: {"model": "parts", "deadline_ms": c.deadline_ms} for name, c in self._scenario.cameras.items()}
        power = {"board": self._facts.name, "policy": "policy.yaml", "root": str(self._board.root)}
        config: dict[str, Any] = {
            "models": {"parts": {"plan": str(part_plan())}}, "cameras": cameras, "power": power,
            "engine": {**ENGINE, "device": self._device},
        }
        if self._device.startswith("cuda"):
            config["engine"]["cpu_steps"] = "allow"  # steps without a CUDA kernel yet; the log names them
        if (trigger := self._scenario.trigger) is not None:
            wired = {"name": "camera", "endpoint": trigger.endpoint, "pattern": "router"}
            config |= {"sources": [*DEFAULTS["sources"], wired], "slots": WIRED_SLOTS}
        return config

    def _write_policy(self) -> None:
        folder = self._work / "daemon"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "policy.yaml").write_text(yaml.safe_dump(self._policy, sort_keys=False))

    def _moves_mode(self) -> bool:
        return any(step.mode or step.mode_behind for step in self._scenario.steps)

    def _keep(self) -> None:
        for name in ("orind.yaml", "policy.yaml", "orind.log"):
            with contextlib.suppress(FileNotFoundError):
                shutil.copy(self._work / "daemon" / name, self._out / name)

    # -- the course ----------------------------------------------------------------------------------------------

    def _play(self, service: Service, wires: contextlib.ExitStack) -> None:
        run, pictures = self._run, part_pictures(8)
        page = service.status()["stats_page"]
        self._board.serve(page)
        self._began_s = time.monotonic()
        sampler = Sampler(self._board.root, self._facts, page, self._began_s)
        sampler.start()
        if self._scenario.trigger is not None:
            self._pulses = self._start_pulses(self._scenario.trigger, service, wires)
        for name, camera in self._scenario.cameras.items():
            if self._scenario.trigger is not None and name == self._scenario.trigger.camera:
                continue
            load = Load(service, pictures, camera.rate_hz, camera=name, encoding="rgb8", wait_s=ANSWERS_S)
            self._loads[name] = load
            load.start()
        try:
            zero_s = self._began_s  # what takes long, such as a reload, moves all that follows
            for step in self._scenario.steps:
                time.sleep(max(0.0, zero_s + step.at_s - time.monotonic()))
                self._act(step, service)
                zero_s = time.monotonic() - step.at_s
                if step.phase is not None:
                    run.begins.append((zero_s + step.at_s - self._began_s, step.phase))
            time.sleep(max(0.0, zero_s + self._scenario.seconds - time.monotonic()))
        finally:
            run.seconds = time.monotonic() - self._began_s
            sampler.stop()
            if self._pulses is not None:
                self._pulses.stop()
            for load in self._loads.values():
                try:
                    load.stop()
                except ServiceError as error:
                    run.wrong.append(str(error))
        run.samples = sampler.samples
        run.wrong += [sampler.error] if sampler.error else []
        self._collect(service)

    def _start_pulses(self, trigger: Trigger, service: Service, wires: contextlib.ExitStack) -> Pulses:
        line = wires.enter_context(Line(self._wiring, trigger.pulse_ms / 1e3))
        subscriber = wires.enter_context(contextlib.closing(service.subscriber(cameras=[trigger.camera])))
        if not subscriber.wait_connected(SUBSCRIBED_S):
            raise ServiceError("the daemon's results cannot be subscribed to")
        pulses = Pulses(trigger.camera, line.pulse, subscriber.receive, trigger.period_s, self._began_s)
        pulses.start()
        return pulses

    def _collect(self, service: Service) -> None:
        """What became of every frame, and the books."""
        run = self._run
        for name, load in self._loads.items():
            answers = {a.result.seq: a for a in load.answers}
            run.surplus += load.surplus()
            for sent in load.sent:
                at_s, answer = sent.at_ns / 1e9 - self._began_s, answers.get(sent.seq)
                run.frames.append(
                    Frame(name, sent.seq, at_s) if answer is None else
                    Frame(name, sent.seq, at_s, answer.at_ns / 1e9 - self._began_s, answer.result.outcome,
                          answer.result.reason or "")
                )
        if self._pulses is not None:
            run.frames += self._pulses.frames
            run.surplus += self._pulses.surplus
            run.wrong += [self._pulses.error] if self._pulses.error else []
        if run.surplus:
            run.wrong.append(f"{run.surplus} answers too many")
        if lost := sum(f.answered_s is None for f in run.frames):
            run.wrong.append(f"{lost} frames have no answer")
        if gap := account_gap(service.status()):
            run.wrong.append(f"{gap} frames are not accounted for")

    # -- steps ---------------------------------------------------------------------------------------------------

    def _act(self, step: Step, service: Service) -> None:
        for name in step.actions():
            value = getattr(step, name)
            self._run.marks.append((time.monotonic() - self._began_s, _in_words(name, value)))
            try:
                getattr(self, f"_{name}", self._surroundings(name))(service, value)
            except (ServiceError, ControlError, PowerError, OSError) as error:
                self._run.wrong.append(f"at {step.at_s:g} s: {_in_words(name, value)}: {str(error).splitlines()[0]}")

    def _surroundings(self, name: str) -> Callable[[Service, Any], None]:
        return lambda _, value: self._board.set_surroundings(name, value)

    def _load(self, _: Service, loads: dict[str, float | str]) -> None:
        for camera, rate in loads.items():
            if rate == "full":
                self._loads[camera].change(window=FULL_WINDOW)
            else:
                self._loads[camera].change(rate_hz=float(rate))

    def _kill(self, service: Service, role: str) -> None:
        os.kill(service.engine_pid(role), signal.SIGKILL)

    def _reload(self, service: Service, _: bool) -> None:
        _must(service.reload(RELOAD_S))

    def _budget_w(self, service: Service, budget_w: float) -> None:
        self._policy["budget_w"] = budget_w
        self._write_policy()
        _must(service.reload(RELOAD_S))

    def _ask_budget_w(self, service: Service, value: float | str) -> None:
        _orind_power(service, "budget", f"{value}", *(() if value == "off" else ("--for", "1h")))

    def _mode(self, service: Service, name: str) -> None:
        _orind_power(service, "mode", name, "--root", str(self._board.root))

    def _mode_behind(self, _: Service, name: str) -> None:
        self._board.enter_mode_behind(name)

    def _sensors(self, _: Service, faults: dict[str, int | str]) -> None:
        self._board.break_sensors(faults)


def _orind_power(service: Service, action: str, *arguments: str) -> None:
    done = service.orind("power", action, *arguments, "--run-dir", str(service.run_dir))
    if done.returncode:
        raise ServiceError(done.stderr.strip() or done.stdout.strip() or f"orind power {action}: {done.returncode}")


def _must(reply: dict[str, Any]) -> None:
    if not reply["ok"]:
        raise ServiceError(f"reload {reply['result']}: {'; '.join(reply['problems'][:3])}")


def _in_words(name: str, value: Any) -> str:
    """A step's action for a person, such as 'load line1: full'."""
    unit = {"_w": " W", "_c": " C"}.get(name[-2:], "")
    words = name.removesuffix(name[-2:] if unit else "").replace("_", " ")
    if isinstance(value, dict):
        return f"{words} {', '.join(f'{key}: {what}' for key, what in value.items()) or 'all well'}"
    if value is True:
        return words
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return f"{words} {value:g}{unit}" if number else f"{words} {value}"
