"""The demonstration behind scripts/demo: real daemon, real plans, two cameras, a killed engine, a reload, one table.

Invariant: it ends with 0 only if every frame that was sent was answered exactly once, the counters add up, and the
daemon took over and reloaded. The board is simulated, and every power figure is said to be.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from demo_view import Answered, annotate_faces, annotate_parts, judge_faces, judge_parts, power_plot, summary
from make_parts import sample

from orind.ipc.client import Publisher
from orind.ipc.control import ControlClient
from orind.ipc.errors import ControlError
from orind.ipc.stats_page import StatsReader
from orind.power.plant.busy import write_busy_file

ROOT = Path(__file__).resolve().parent.parent
PARTS_HZ, FACES_HZ = 20.0, 5.0
KILL_AT_S, RELOAD_AT_S, END_AT_S = 5.0, 9.0, 15.0
CALIBRATION_SEED, SHOWN_SEED, SHOWN_PARTS = 500_000, 700_000, 40
EXAMPLE = """\
example: scripts/demo --stay
exit code 0: every frame was answered exactly once, the daemon took over and reloaded; 1: not; 130: ended by Ctrl-C"""
WHAT = """\
builds two plans, serves two cameras with the real daemon, kills the active engine once, reloads once, and prints what
became of every frame; board, power and temperature are simulated"""
AMBIENT_C = 35.0
START_TIMEOUT_S = 60.0


def say(text: str) -> None:
    print(f"== {text}", flush=True)


@dataclass
class Stage:
    """The folders of one run: `work` is short-lived (sockets have short paths), `out` is kept."""

    work: Path
    out: Path
    children: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def daemon(self) -> subprocess.Popen[bytes]:
        return self.children[-1]

    @property
    def run_dir(self) -> Path:
        return self.work / "run"

    def ask(self, request: dict[str, Any], timeout_s: float = 10.0) -> dict[str, Any]:
        with ControlClient(self.run_dir / "control") as client:
            return client.request(request, timeout_s)

    def close(self) -> None:
        for child in reversed(self.children):
            child.terminate()
            child.wait()
        shutil.rmtree(self.work, ignore_errors=True)


def build_plans(stage: Stage) -> None:
    """The part detector in INT8, calibrated on generated parts; the face detector in FP32 (INT8 costs it too much)."""
    pictures = stage.work / "calibration"
    generate = [sys.executable, str(ROOT / "scripts/make_parts.py"), "--count", "256", "--format", "png"]
    subprocess.run(
        [*generate, "--seed", str(CALIBRATION_SEED), "--out", str(pictures)], check=True, stdout=subprocess.DEVNULL
    )
    for name, precision in (("part-inspect", "int8"), ("blazeface-back", "fp32")):
        say(f"building {name}.plan ({precision})")
        model = ROOT / "configs/models" / name
        command = [sys.executable, "-m", "orind.daemon.cli", "build", f"{model}.onnx", "--spec", f"{model}.yaml"]
        command += ["--calibrate", str(pictures), "--precision", precision, "-o", str(stage.work / f"{name}.plan")]
        subprocess.run(command, check=True)


def start_board(stage: Stage) -> None:
    """A simulated AGX Orin beside the daemon."""
    root = stage.work / "board"
    command = [sys.executable, "-m", "orind.power.plant", "--root", str(root), "--ambient", str(AMBIENT_C)]
    command += ["--busy-file", str(stage.work / "busy")]
    log = (stage.out / "board.log").open("wb")
    stage.children.append(subprocess.Popen(command, stdout=log, stderr=log))
    wait_for(lambda: (root / "sys/class/devfreq").exists(), "the simulated board")


def start_daemon(stage: Stage) -> dict[str, Any]:
    """`orind serve` with the demonstration's configuration; returns its first status."""
    shutil.copy(ROOT / "configs/demo.yaml", stage.work / "orind.yaml")
    shutil.copy(ROOT / "configs/power/agx-orin-30w.yaml", stage.work)
    log = (stage.out / "orind.log").open("wb")
    command = [sys.executable, "-m", "orind.daemon.cli", "serve", str(stage.work / "orind.yaml")]
    child = subprocess.Popen(command, stdout=log, stderr=log)
    stage.children.append(child)

    def serving() -> dict[str, Any] | None:
        if child.poll() is not None:
            sys.exit(f"orind ended with {child.returncode}:\n{(stage.out / 'orind.log').read_text()}")
        try:
            status = stage.ask({"op": "status"})
        except ControlError:
            return None
        return status if status["state"] == "serving" else None

    status: dict[str, Any] = wait_for(serving, "the daemon")
    return status


def wait_for(condition: Any, what: str) -> Any:
    end = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < end:
        result = condition()
        if result:
            return result
        time.sleep(0.05)
    sys.exit(f"{what} did not come up within {START_TIMEOUT_S:g} s")


class Camera(threading.Thread):
    """Sends frames at a steady rate and keeps every answer with the time at which it came."""

    def __init__(self, stage: Stage, name: str, rate_hz: float, frames: list[Any], begin: float, end: float) -> None:
        super().__init__(daemon=True)
        self.frames = frames
        self.sent = 0
        self.answers: list[Answered] = []
        self.unanswered = 0
        self._endpoint = f"ipc://{stage.run_dir}/frames"
        self._name, self._rate_hz, self._begin, self._end = name, rate_hz, begin, end

    def run(self) -> None:
        with Publisher(self._endpoint, self._name) as camera:
            while (due := self._begin + self.sent / self._rate_hz) < self._end:
                while (left := due - time.monotonic()) > 0:
                    self._collect(camera, left)
                camera.send(self.frames[self.sent % len(self.frames)], *(("rgb8",) if self._name == "line1" else ()))
                self.sent += 1
            while camera.outstanding and time.monotonic() < self._end + 10:
                self._collect(camera, 0.5)
            self.unanswered = len(camera.unanswered)

    def _collect(self, camera: Publisher, timeout_s: float) -> None:
        before = time.monotonic()
        for result in camera.poll(timeout_s):
            self.answers.append(Answered(time.monotonic(), result))
        if not camera.outstanding:
            time.sleep(max(0.0, timeout_s - (time.monotonic() - before)))


class PowerLog(threading.Thread):
    """Reads the status four times a second, and hands the daemon's busy counter to the simulated board."""

    def __init__(self, stage: Stage, stats_page: str) -> None:
        super().__init__(daemon=True)
        self.readings: list[dict[str, Any]] = []
        self._stage = stage
        self._stats = StatsReader(os.open(stats_page, os.O_RDONLY))
        self._done = threading.Event()

    def run(self) -> None:
        turn = 0
        while not self._done.wait(0.1):
            counters = self._stats.read_counters()
            write_busy_file(self._stage.work / "busy", counters.now_ns, counters.busy_ns)
            turn += 1
            if turn % 3 == 0:
                self.readings.append(self._stage.ask({"op": "status"})["power"])

    def stop(self) -> None:
        self._done.set()
        self.join()


def perform(stage: Stage, first: dict[str, Any]) -> int:
    """Two cameras, one killed engine, one reload. Prints the table; returns the exit code."""
    photographs = sorted((ROOT / "configs/frames").glob("*.jpg"))
    parts = [sample(SHOWN_SEED + i) for i in range(SHOWN_PARTS)]
    begin = time.monotonic() + 0.2
    end = begin + END_AT_S
    line = Camera(stage, "line1", PARTS_HZ, [np.ascontiguousarray(image) for image, _ in parts], begin, end)
    door = Camera(stage, "door", FACES_HZ, [p.read_bytes() for p in photographs], begin, end)
    power = PowerLog(stage, first["stats_page"])
    for thread in (power, line, door):
        thread.start()
    time.sleep(max(0.0, begin + KILL_AT_S - time.monotonic()))
    victim = next(e["pid"] for e in stage.ask({"op": "status"})["engines"] if e["role"] == "active")
    say(f"killing the active engine (pid {victim}) with SIGKILL")
    killed_at = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    time.sleep(max(0.0, begin + RELOAD_AT_S - time.monotonic()))
    say("reloading the configuration")
    reload_at = time.monotonic()
    reloaded = stage.ask({"op": "reload", "wait": True}, 60.0)
    reload_s = time.monotonic() - reload_at
    say(f"reload: {reloaded['result']} after {reload_s * 1000:.0f} ms")
    line.join()
    door.join()
    power.stop()
    status = stage.ask({"op": "status"})
    (stage.out / "status.json").write_text(json.dumps(status, indent=2))

    found_parts = judge_parts(line.answers, parts)
    found_faces = judge_faces(door.answers, photographs, ROOT / "configs/frames/expected.json")
    annotate_parts(stage.out, line.answers, parts)
    annotate_faces(stage.out, door.answers, photographs)
    cameras = [("line1", line), ("door", door)]
    print("\n".join(summary(cameras, status, killed_at, reload_at, reload_s, found_parts, found_faces)))
    print("\n".join(power_plot(power.readings)))
    say(f"annotated pictures, the daemon's log and its last status are in {stage.out}")
    return verdict(cameras, status, reloaded, found_faces)


def verdict(cameras: Any, status: dict[str, Any], reloaded: dict[str, Any], faces: Any) -> int:
    """0 when everything that must hold does; otherwise each thing that does not, and 1."""
    frames = status["frames"]
    outcomes = sum(frames[k] for k in ("ok", "degraded", "stale", "rejected", "expired", "error", "dropped"))
    wrong = []
    for name, camera in cameras:
        seqs = [a.result.seq for a in camera.answers]
        if camera.unanswered or sorted(seqs) != list(range(camera.sent)):
            wrong.append(f"{name}: {camera.sent} frames sent, {len(seqs)} answers for {len(set(seqs))} of them")
    if frames["received"] != outcomes + frames["in_flight"]:
        wrong.append(f"the counters do not add up: {frames}")
    if status["failovers"] < 1 or not reloaded["ok"]:
        wrong.append(f"{status['failovers']} failovers, reload: {reloaded['result']}")
    wrong += [f"{f.name}: a face was missed" for f in faces if f.found < f.expected]
    for line in wrong:
        print(f"FAILED: {line}", file=sys.stderr)
    return 1 if wrong else 0


def stay(stage: Stage, status: dict[str, Any]) -> int:
    """Until Ctrl-C (0), or until the daemon ends: its exit code."""
    print(
        f"""
orind keeps serving; Ctrl-C ends it. In another terminal:
  . {ROOT}/.venv-run/bin/activate
  orind status --run-dir {stage.run_dir}
  orind publish {ROOT}/configs/frames --camera door --rate 2 --endpoint ipc://{stage.run_dir}/frames
  orind listen --endpoint ipc://{stage.run_dir}/results
  orind power --watch --run-dir {stage.run_dir}
  orind power budget 18 --for 10m --run-dir {stage.run_dir}
  orind power modes --root {stage.work / "board"}
status page: {status["http"]}""",
        flush=True,
    )
    try:
        code = stage.daemon.wait()
    except KeyboardInterrupt:
        return 0
    print(f"orind has ended with {code}; its log: {stage.out / 'orind.log'}", flush=True)
    return code


def interrupt(number: int, frame: object) -> None:
    """SIGTERM ends it as Ctrl-C does: with everything that it started."""
    raise KeyboardInterrupt


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/demo", description=WHAT, epilog=EXAMPLE,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stay", action="store_true", help="keep serving afterwards, until Ctrl-C")
    parser.add_argument("--out", type=Path, default=ROOT / "out" / "demo", help="folder for pictures and logs")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    stage = Stage(Path(tempfile.mkdtemp(prefix="orind-demo-")), options.out.resolve())
    signal.signal(signal.SIGTERM, interrupt)
    try:
        build_plans(stage)
        say("starting a simulated AGX Orin board (every power figure below is simulated)")
        start_board(stage)
        say("starting orind with two cameras: line1 (parts, raw frames), door (photographs, JPEG)")
        status = start_daemon(stage)
        code = perform(stage, status)
        if options.stay:
            code = stay(stage, status) or code
        return code
    except KeyboardInterrupt:
        return 130
    finally:
        stage.close()


if __name__ == "__main__":
    sys.exit(main())
