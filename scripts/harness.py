"""What benches and service tests share: a real daemon under a generated configuration.

Load on it is in camera_load.py, plans for it in built_plans.py. Invariant: whatever happens inside a
`with Service(...)`, none of its processes lives on, and a failure shows the daemon's log.

    from built_plans import part_pictures, part_plan
    from camera_load import Load

    config = {"models": {"m": {"plan": str(part_plan())}}, "cameras": {"line1": {"model": "m"}}}
    with Service(folder, config) as service:
        with Load(service, part_pictures(4), rate_hz=40, encoding="rgb8") as load:
            service.kill_active()
            load.stop()
        assert load.lost() == []
"""

from __future__ import annotations

import copy
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import yaml

from orind.ipc.answer import OUTCOMES
from orind.ipc.client import Publisher, Subscriber
from orind.ipc.control import ControlClient
from orind.ipc.errors import ControlError

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0
LOG_LINES = 80
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
