"""Restarts of the unit while a camera program sends: who was answered, how often, how long nobody was.

Used by test_restarts.py and by scripts/bench_restarts.py. The camera program uses the client library with its ordinary
re-sending, as a customer would; what it is handed counts, not what crossed the wire.
"""

from __future__ import annotations

import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import built_plans
import camera_load
from installed import UNIT, Installed

from orind.ipc.client import Publisher

SOCKET = "orind.socket"
RATE_HZ = 40.0
# Half the slots: a successor does not know what its predecessor answered, so a repeat that was on its way is new to it.
OUTSTANDING_MAX = 32
QUIET_S = 0.5  # of load before each restart


class Camera:
    """What camera_load.Load asks of a service: a client, here one that re-sends and waits as long as a start takes."""

    def __init__(self, installed: Installed) -> None:
        self._installed = installed
        self.publisher: Publisher | None = None

    def client(self, camera: str) -> Publisher:
        self.publisher = self._installed.client(
            camera, resend_after_s=0.5, send_timeout_s=60.0, max_outstanding=OUTSTANDING_MAX
        )
        return self.publisher


@dataclass
class Restarts:
    """gaps_ms: the longest time without an answer around each restart, by its kind."""

    load: camera_load.Load
    resent: int = 0
    suppressed: int = 0
    gaps_ms: dict[str, list[float]] = field(default_factory=dict)

    def unanswered(self) -> list[int]:
        return self.load.lost()

    def answered_twice(self) -> list[int | None]:
        """As the application sees it; what the client library suppressed is counted in `suppressed`."""
        return [seq for seq, n in Counter(a.result.seq for a in self.load.answers).items() if n > 1]


def graceful(installed: Installed) -> None:
    installed.systemctl("restart", UNIT)


def killed(installed: Installed) -> None:
    """kill -9 of main; systemd starts it again by itself."""
    before = installed.main_pid
    installed.systemctl("reset-failed", UNIT)  # many kills in five minutes are ours, not the daemon's
    installed.kill_main()
    installed.await_unit("MainPID", lambda pid: pid not in ("0", str(before)))


KINDS: dict[str, Callable[[Installed], None]] = {"graceful": graceful, "kill -9": killed}


def shipped_config(plan: str) -> dict[str, Any]:
    """A configuration as on a board: paths as shipped, the part detector, watchdogs that suit a shared machine."""
    return {
        "run_dir": "/run/orind",
        "models": {"parts": {"plan": plan}},
        "cameras": {"line1": {"model": "parts", "deadline_ms": 60_000}},
        "sources": [{"name": "frames", "endpoint": "ipc://{run_dir}/frames", "pattern": "router"}],
        "slots": {"count": 64, "bytes": 1 << 20},
        "engine": {
            "heartbeat_missed_ms": 1000,
            "batch_watchdog_ms": 5000,
            "golden_timeout_ms": 10_000,
            "golden_interval_s": 30,
        },
    }


def held_by_systemd(config: Mapping[str, Any]) -> dict[str, Any]:
    """The same with the cameras' socket from orind.socket."""
    return {**config, "sources": [{**config["sources"][0], "endpoint": "systemd:frames"}]}


class Knocking(threading.Thread):
    """A camera program that connects anew, 50 times a second, as often as it is let."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.accepted = self.refused = 0
        self._path = path
        self._enough = threading.Event()

    def run(self) -> None:
        while not self._enough.wait(0.02):
            with socket.socket(socket.AF_UNIX) as sock:
                try:
                    sock.connect(self._path)
                    self.accepted += 1
                except OSError:
                    self.refused += 1

    def __enter__(self) -> Knocking:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._enough.set()
        self.join()


def restart_under_load(installed: Installed, turns: list[str], said: Callable[[str], None] = print) -> Restarts:
    """Restart once for each of `turns` (keys of KINDS), 40 frames/s all the time. orind must be serving."""
    camera = Camera(installed)
    with camera_load.Load(camera, built_plans.part_pictures(8), RATE_HZ, encoding="rgb8", wait_s=60.0) as load:
        result = Restarts(load, gaps_ms={kind: [] for kind in KINDS})
        for kind in turns:
            _answered_for(load, QUIET_S)
            from_ns = time.monotonic_ns()
            KINDS[kind](installed)
            installed.serving()
            _answered_for(load, QUIET_S)
            result.gaps_ms[kind].append(load.largest_gap_ns(from_ns, time.monotonic_ns()) / 1e6)
            said(f"{kind}: {result.gaps_ms[kind][-1]:.0f} ms without an answer")
        load.stop()
    assert camera.publisher is not None
    result.resent, result.suppressed = camera.publisher.resent, camera.publisher.duplicates
    return result


def _answered_for(load: camera_load.Load, seconds: float) -> None:
    """Wait until answers have come for so long."""
    begin_ns = time.monotonic_ns()
    while (first := load.first_answer_after(begin_ns)) is None or time.monotonic_ns() - first.at_ns < seconds * 1e9:
        load.next_sent(60.0)
