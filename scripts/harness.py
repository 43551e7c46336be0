"""What benches and service tests share: a real daemon under a generated configuration, load on it, plans for it.

Loaded by scripts/bench_* and, by path, by tests/daemon. Invariant: whatever happens inside a `with Service(...)`, none
of its processes lives on, and a failure shows the daemon's log. Times are CLOCK_MONOTONIC, as in the daemon's records.

    config = {"models": {"m": {"plan": str(part_plan())}}, "cameras": {"line1": {"model": "m"}}}
    with Service(folder, config) as service:
        with Load(service, part_pictures(4), rate_hz=40, encoding="rgb8") as load:
            service.kill_active()
            load.stop()
        assert load.lost() == []
"""

from __future__ import annotations

import copy
import hashlib
import importlib.util
import itertools
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from orind.ipc.answer import OUTCOMES
from orind.ipc.client import Publisher, Result, Subscriber
from orind.ipc.control import ControlClient
from orind.ipc.errors import ControlError

ROOT = Path(__file__).resolve().parent.parent
PLANS = ROOT / "build" / "plans"
MODELS = ROOT / "configs" / "models"
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0
LOG_LINES = 80
CALIBRATION_SEED, CALIBRATION_PARTS, SHOWN_SEED = 500_000, 256, 700_000
PAGE_BYTES = 4096
LOOK_S = 0.05  # how often a load that sends nothing by itself looks whether it is to change
TINY_SHAPE = (1, 16, 8, 8)  # as ONNX has it
# No power, no http: only what moves frames. The restart budget and the watchdogs suit a shared machine and many kills;
# engines do not take turns by themselves, so that the one that was found active is the one that is killed.
DEFAULTS: dict[str, Any] = {
    "run_dir": "run",
    "models": {},
    "cameras": {},
    "sources": [{"name": "triggers", "endpoint": "ipc://{run_dir}/triggers", "pattern": "router"}],
    "results": {"endpoint": "ipc://{run_dir}/results"},
    "slots": {"count": 64, "bytes": 2 << 20},
    "engine": {
        "batch_watchdog_ms": 5000,
        "heartbeat_missed_ms": 1000,
        "golden_interval_s": 600,
        "golden_timeout_ms": 10_000,
        "restart_budget": 1000,
    },
    "batching": {"mode": "window", "max_size": 1},
    "decode": {"workers": 0},
}
CAMERA_DEFAULTS = {"deadline_ms": 20_000}


class ServiceError(Exception):
    """The daemon did not do what the harness waits for; the text says what, and ends with the daemon's log."""


class Service:
    """`orind serve` in a folder of its own. As a context manager it serves on entry and is gone on exit."""

    def __init__(self, work_dir: Path, config: Mapping[str, Any] | None = None) -> None:
        """work_dir: kept short, since sockets lie below it (108 bytes). config: merged over DEFAULTS, key by key.

        In `config` lists replace, None removes a key, and each camera has CAMERA_DEFAULTS.
        """
        self.work_dir = work_dir.resolve()
        self.run_dir = self.work_dir / "run"
        self.endpoint = f"ipc://{self.run_dir}/triggers"
        self.results_endpoint = f"ipc://{self.run_dir}/results"
        self.config_path = self.work_dir / "orind.yaml"
        self.log_path = self.work_dir / "orind.log"
        self.exit_code: int | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._killed = False
        self.work_dir.mkdir(parents=True, exist_ok=True)
        self.config: dict[str, Any] = {}
        self.configure(config or {})

    # -- configuration -------------------------------------------------------------------------------------------

    def configure(self, overrides: Mapping[str, Any]) -> None:
        """Write the configuration file anew: DEFAULTS with `overrides`. It counts from the next start or reload."""
        self.config = _merge(DEFAULTS, overrides)
        for camera in self.config["cameras"].values():
            for key, value in CAMERA_DEFAULTS.items():
                camera.setdefault(key, value)
        self.write_config(yaml.safe_dump(self.config, sort_keys=False))

    def write_config(self, text: str) -> None:
        """Write the configuration file as given, mistakes included; replaced at once, never half written."""
        draft = self.config_path.with_suffix(".new")
        draft.write_text(text)
        draft.replace(self.config_path)

    # -- life ----------------------------------------------------------------------------------------------------

    def start(self, state: str = "serving") -> dict[str, Any]:
        """Start the daemon and wait until its `state` is the given one. Returns that status."""
        self.launch()
        return self.await_state(state)

    def await_state(self, state: str = "serving") -> dict[str, Any]:
        """Wait until the daemon's `state` is the given one. Returns that status."""
        return self.wait_for(lambda status: status["state"] == state, f"state {state}", START_TIMEOUT_S)

    def launch(self) -> None:
        """Start the daemon and do not wait."""
        command = [sys.executable, "-m", "orind.daemon.cli", "serve", str(self.config_path)]
        self.exit_code, self._killed = None, False
        with self.log_path.open("ab") as log:
            # a session of its own: whatever is left of it can be killed as a group
            self._process = subprocess.Popen(
                command, cwd=self.work_dir, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    @property
    def pid(self) -> int:
        """Process id of main."""
        assert self._process is not None, "start first"
        return self._process.pid

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to main."""
        os.kill(self.pid, number)

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """SIGTERM, wait, -> exit code. Raises ServiceError when it does not end in time (and kills it)."""
        if self._process is None:
            raise ServiceError("the daemon was not started")
        if self.exit_code is not None:
            return self.exit_code
        self.send_signal(signal.SIGTERM)
        ended = self._ended_within(timeout_s)
        code = self._bury()
        if not ended:
            raise ServiceError(f"the daemon did not end within {timeout_s:g} s after SIGTERM\n{self.log()}")
        return code

    def wait_exit(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """Wait for the daemon to end by itself, -> exit code."""
        ended = self._ended_within(timeout_s)
        code = self._bury()
        if not ended:
            raise ServiceError(f"the daemon did not end within {timeout_s:g} s\n{self.log()}")
        return code

    def kill(self) -> None:
        """SIGKILL for main and everything it started, at once."""
        self._killed = True
        self._bury()

    def _ended_within(self, timeout_s: float) -> bool:
        """Whether main has ended; it is left unreaped, so that its process group cannot become somebody else's."""
        end = time.monotonic() + timeout_s
        while not _has_ended(self.pid):
            if time.monotonic() >= end:
                return False
            time.sleep(0.005)
        return True

    def _bury(self) -> int:
        """Kill whatever is left of it and reap main, -> exit code (0 if it was never started)."""
        if self._process is not None and self.exit_code is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self.exit_code = self._process.wait()
        return self.exit_code or 0

    def __enter__(self) -> Service:
        try:
            self.start()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.kill()
            print(f"-- the daemon's log ({self.log_path})\n{self.log()}\n--", file=sys.stderr)
            return
        code = self.stop() if self.exit_code is None else self.exit_code
        if code and not self._killed:
            raise ServiceError(f"the daemon ended with {code}\n{self.log()}")

    def log(self, lines: int = LOG_LINES) -> str:
        """The end of the daemon's log."""
        if not self.log_path.exists():
            return ""
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])

    # -- talking to it -------------------------------------------------------------------------------------------

    def ask(self, request: Mapping[str, Any], timeout_s: float = 20.0) -> dict[str, Any]:
        """One request on the control socket. Raises ControlError."""
        with ControlClient(self.run_dir / "control", timeout_s) as client:
            return client.request(request, timeout_s)

    def status(self) -> dict[str, Any]:
        return self.ask({"op": "status"})

    def reload(self, timeout_s: float = 60.0) -> dict[str, Any]:
        """Reload and wait: {ok, result, problems, notes}."""
        return self.ask({"op": "reload", "wait": True}, timeout_s)

    def orind(self, *arguments: str, timeout_s: float = 60.0) -> subprocess.CompletedProcess[str]:
        """Run the command line, e.g. orind("reload", "--wait", "--run-dir", str(service.run_dir))."""
        command = [sys.executable, "-m", "orind.daemon.cli", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)

    def client(self, camera: str = "line1", **options: Any) -> Publisher:
        """A DEALER client. Never re-sends by itself unless told to: what is lost must be seen as lost."""
        return Publisher(self.endpoint, camera, **{"resend_after_s": 60.0, "give_up_after_s": 60.0, **options})

    def subscriber(self, **options: Any) -> Subscriber:
        return Subscriber(self.results_endpoint, **options)

    def wait_for(
        self, condition: Callable[[dict[str, Any]], Any], what: str, timeout_s: float = START_TIMEOUT_S
    ) -> dict[str, Any]:
        """Ask for the status until `condition(status)` holds. Raises ServiceError with the log."""
        end = time.monotonic() + timeout_s
        status: dict[str, Any] = {}
        while time.monotonic() < end:
            if self._ended_within(0.0):
                self._bury()
                raise ServiceError(f"the daemon ended with {self.exit_code}, awaited was {what}\n{self.log()}")
            try:
                status = self.status()
            except ControlError:
                status = {}
            if status and condition(status):
                return status
            time.sleep(0.02)
        raise ServiceError(f"no {what} within {timeout_s:g} s; the last status: {status}\n{self.log()}")

    # -- engines and accounts ------------------------------------------------------------------------------------

    def engine_pid(self, role: str) -> int:
        """Process id of the engine that is "active" (receives frames) or "standby". Raises ServiceError: none is."""
        pids = [e["pid"] for e in self.status()["engines"] if e["role"] == role]
        if not pids:
            raise ServiceError(f"there is no {role} engine")
        return int(pids[0])

    def active_pid(self) -> int:
        """Process id of the engine that receives frames."""
        return self.engine_pid("active")

    def kill_active(self, number: signal.Signals = signal.SIGKILL) -> int:
        """Send a signal to the active engine, -> when, in ns."""
        pid = self.active_pid()
        at_ns = time.monotonic_ns()
        os.kill(pid, number)
        return at_ns


def account_gap(status: Mapping[str, Any]) -> int:
    """received - (sum of outcomes + in flight): 0, always."""
    frames = status["frames"]
    return int(frames["received"] - sum(frames[o] for o in OUTCOMES) - frames["in_flight"])


def _has_ended(pid: int) -> bool:
    """Whether this child has ended; it stays a zombie."""
    return bool(os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT))


def _merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = copy.deepcopy(dict(base))
    for key, value in over.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, Mapping):
            merged[key] = _merge(merged.get(key) or {}, value)
        else:
            merged[key] = copy.deepcopy(value)
    return merged


# -- load --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sent:
    """A frame and when it left, CLOCK_MONOTONIC ns."""

    seq: int
    at_ns: int


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer and when it was here, CLOCK_MONOTONIC ns."""

    at_ns: int
    result: Result


class Load(threading.Thread):
    """Sends frames of one camera at a steady rate (DEALER) and keeps every answer with its time. `change` alters it.

    Runs from `with` entry (or start()) to stop(), which waits for what is unanswered and raises what went wrong.
    """

    def __init__(
        self,
        service: Service,
        frames: Sequence[NDArray[Any] | bytes],
        rate_hz: float = 40.0,
        camera: str = "line1",
        encoding: str | None = None,
        wait_s: float = 20.0,
    ) -> None:
        """rate_hz: 0 for none yet. encoding: as in Publisher.send. wait_s: how long stop() waits for answers."""
        super().__init__(name=f"load {camera}", daemon=True)
        self.sent: list[Sent] = []
        self.answers: list[Answered] = []
        self.duplicates = 0
        self.period_ns = int(1e9 / rate_hz) if rate_hz else 0
        self._window = 0
        self._service, self._frames, self._camera, self._encoding = service, frames, camera, encoding
        self._wait_s = wait_s
        self._error: BaseException | None = None
        self._stopping = threading.Event()
        self._news = threading.Condition()

    def run(self) -> None:
        try:
            with self._service.client(self._camera) as client:
                self._send_all(client)
                self._collect(client, self._wait_s, until=0)
                self.duplicates = client.duplicates + client.malformed
        except BaseException as error:  # noqa: BLE001 whatever it is: stop() raises it in the caller's thread
            self._error = error
        with self._news:
            self._news.notify_all()

    def change(self, rate_hz: float = 0.0, window: int = 0) -> None:
        """From now on frames leave at `rate_hz`, or as answers come, with `window` unanswered; without either none."""
        self.period_ns, self._window = int(1e9 / rate_hz) if rate_hz else 0, window

    def _send_all(self, client: Publisher) -> None:
        due_ns = time.monotonic_ns()
        while not self._stopping.is_set():
            period_ns, window = self.period_ns, self._window
            if window and client.outstanding >= window:
                self._collect(client, LOOK_S, until=window - 1)
                continue
            if not window and not period_ns:
                self._collect(client, LOOK_S)
                due_ns = time.monotonic_ns()
                continue
            client.send(self._frames[len(self.sent) % len(self._frames)], self._encoding)
            with self._news:
                self.sent.append(Sent(len(self.sent), time.monotonic_ns()))
                self._news.notify_all()
            due_ns = due_ns + period_ns if period_ns else time.monotonic_ns()
            self._collect(client, (due_ns - time.monotonic_ns()) / 1e9)

    def _collect(self, client: Publisher, timeout_s: float, until: int | None = None) -> None:
        """Take answers for timeout_s, or until so few are awaited."""
        end = time.monotonic() + timeout_s
        while True:
            left = end - time.monotonic()
            for result in client.poll(max(0.0, left) if client.outstanding else 0.0):
                self.answers.append(Answered(time.monotonic_ns(), result))
            if left <= 0 or (until is not None and client.outstanding <= until):
                return
            if not client.outstanding:
                self._stopping.wait(max(0.0, end - time.monotonic()))

    def next_sent(self, timeout_s: float = 10.0) -> Sent:
        """Wait for the next frame to leave."""
        with self._news:
            count = len(self.sent)
            if not self._news.wait_for(lambda: len(self.sent) > count or self._error, timeout_s) or self._error:
                raise ServiceError(f"no frame left within {timeout_s:g} s") from self._error
            return self.sent[-1]

    def stop(self) -> None:
        """Send no more, wait for the answers. Raises ServiceError with what the thread failed at."""
        self._stopping.set()
        self.join(self._wait_s + 10.0)
        if self._error is not None or self.is_alive():
            raise ServiceError(f"the load on {self._camera} failed: {self._error}") from self._error

    def __enter__(self) -> Load:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self.join(self._wait_s + 10.0)

    # -- what came of it -----------------------------------------------------------------------------------------

    def lost(self) -> list[int]:
        """seq of every frame without an answer."""
        return sorted({s.seq for s in self.sent} - {a.result.seq for a in self.answers if a.result.seq is not None})

    def surplus(self) -> int:
        """Answers too many: a frame answered twice, an answer that is not ours."""
        seqs = [a.result.seq for a in self.answers]
        return self.duplicates + len(seqs) - len(set(seqs))

    def not_ok(self) -> list[Answered]:
        return [a for a in self.answers if not a.result.ok]

    def largest_gap_ns(self, from_ns: int, to_ns: int) -> int:
        """Largest interval between answers that ends within from_ns..to_ns, less the period of the load."""
        times = [a.at_ns for a in list(self.answers)]
        gaps = [b - a for a, b in itertools.pairwise(times) if from_ns <= b <= to_ns]
        return max(gaps, default=0) - self.period_ns

    def first_answer_after(self, at_ns: int) -> Answered | None:
        return next((a for a in list(self.answers) if a.at_ns > at_ns), None)


# -- plans -------------------------------------------------------------------------------------------------------


def part_plan(precision: str = "int8", variant: int = 0) -> Path:
    """The part detector. INT8 plans of another `variant` are calibrated on other pictures, so that they differ."""
    return _shipped("part-inspect", precision, variant)


def face_plan(precision: str = "fp32") -> Path:
    """The face detector, FP32 unless asked otherwise."""
    return _shipped("blazeface-back", precision, 0)


def identity_plan(rows: int) -> Path:
    """Takes a uint8 tensor (1, rows, 4096, 1), gives one byte of each row as float32: every page is read."""
    import onnx

    model = load_by_path(ROOT / "tests" / "kernels" / "models.py").identity_onnx(rows, PAGE_BYTES)
    data: bytes = model.SerializeToString()

    def build(out: Path) -> None:
        from orind.kernels.build import build_plan

        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "identity.onnx"
            onnx.save(model, str(path))
            build_plan(path, None, [], out, "fp32")

    return cached_plan(f"identity-{rows}", data, build)


def identity_tensor(rows: int, seed: int = 0) -> NDArray[np.uint8]:
    """A payload for `identity_plan(rows)`."""
    return np.random.default_rng(seed).integers(0, 256, (1, rows, PAGE_BYTES, 1), np.uint8)


def tiny_plan() -> Path:
    """One float16 convolution of a float32 tensor (1, 8, 8, 16): the virtual GPU takes a few milliseconds for it."""
    import onnx

    net = load_by_path(ROOT / "tests" / "kernels" / "models.py").Net((1, 16, 8, 8), seed=1)
    model = net.model([(net.conv("images", 16), TINY_SHAPE)])

    def build(out: Path) -> None:
        from orind.kernels.build import build_plan

        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "tiny.onnx"
            onnx.save(model, path)
            build_plan(path, None, [], out, "fp16")

    return cached_plan("tiny", model.SerializeToString(), build)


def tiny_tensors(count: int) -> list[NDArray[np.float32]]:
    """Payloads for `tiny_plan()`, whose images are served with channels last."""
    n, c, h, w = TINY_SHAPE
    return list(np.random.default_rng(0).standard_normal((count, n, h, w, c), np.float32))


def part_pictures(count: int, seed: int = SHOWN_SEED) -> list[NDArray[np.uint8]]:
    """Generated parts, uint8 (256, 256, 3) rgb8, never among those of a calibration."""
    make_parts = load_by_path(ROOT / "scripts" / "make_parts.py")
    return [np.ascontiguousarray(make_parts.sample(seed + i)[0]) for i in range(count)]


def _shipped(name: str, precision: str, variant: int) -> Path:
    onnx_path, spec_path = MODELS / f"{name}.onnx", MODELS / f"{name}.yaml"

    def build(out: Path) -> None:
        from orind.kernels.build import build_plan
        from orind.kernels.spec_yaml import read_spec

        with tempfile.TemporaryDirectory() as folder:
            pictures = Path(folder) / "parts"
            seed = CALIBRATION_SEED + variant * CALIBRATION_PARTS
            load_by_path(ROOT / "scripts" / "make_parts.py").write_parts(CALIBRATION_PARTS, seed, pictures)
            build_plan(onnx_path, read_spec(spec_path), [pictures], out, precision)

    told = onnx_path.read_bytes() + spec_path.read_bytes() + f"{precision} {variant}".encode()
    return cached_plan(f"{name}-{precision}-{variant}", told, build)


def cached_plan(name: str, told: bytes, build: Callable[[Path], None]) -> Path:
    """build/plans/NAME-HASH.plan; the hash covers what the plan is made of and every source of the compiler."""
    digest = hashlib.sha256(told)
    for source in sorted((ROOT / "kernels").rglob("*.py")):
        digest.update(source.read_bytes())
    path = PLANS / f"{name}-{digest.hexdigest()[:12]}.plan"
    if not path.exists():
        print(f"== building {name}.plan (once)", file=sys.stderr, flush=True)
        PLANS.mkdir(parents=True, exist_ok=True)
        build(path)
    return path


def load_by_path(path: Path) -> ModuleType:
    """A file of this repository as a module, without its folder on sys.path."""
    name = f"orind_file_{path.stem}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


# -- figures -----------------------------------------------------------------------------------------------------


def spread(values: Sequence[float], digits: int = 2) -> str:
    """'median (low-high)' of the middle 80 % of the values."""
    ordered = sorted(values)
    cut = len(ordered) // 10
    low, high = ordered[cut], ordered[len(ordered) - 1 - cut]
    return f"{statistics.median(ordered):.{digits}f} ({low:.{digits}f}-{high:.{digits}f})"


def machine() -> str:
    """One line on the machine and how busy it is: absolute times mean little where others work too."""
    load = " ".join(f"{x:.1f}" for x in os.getloadavg())
    return f"{os.cpu_count()} CPUs ({os.uname().machine}), load average {load}, Python {sys.version.split()[0]}"
