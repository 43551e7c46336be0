"""The plant: exact steps, published rows, sensor lag and grain, files that obey and appear whole, real time."""

from __future__ import annotations

import dataclasses
import math
import os
import signal
import subprocess
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path

import pytest

from orind.power.board import BoardFacts
from orind.power.errors import PowerError
from orind.power.plant import runner
from orind.power.plant.board import PlantBoard
from orind.power.plant.busy import read_busy_file, write_busy_file
from orind.power.plant.constants import PlantConstants, faster
from orind.power.plant.model import PlantModel
from orind.power.plant.modules import AGX_ORIN, JETPACKS
from orind.power.plant.tree import Layout, build_tree
from orind.power.sensors import Sensors

AGX = Layout(AGX_ORIN, JETPACKS["6"], JETPACKS["6"].hwmon)
QUIET = dataclasses.replace(PlantConstants(), rail_noise=(0.0,) * 4, temperature_noise_c=0.0, leak_per_c=0.0)


def test_steps_are_exact_whatever_their_length() -> None:
    coarse, fine = PlantModel(QUIET), PlantModel(QUIET)
    coarse.fan_works = fine.fan_works = False
    for plant in (coarse, fine):
        plant.step(5.0, 306, 0.0)  # past the first look of the fan control
    for _ in range(10):
        coarse.step(2.0, 918, 0.8)
    for _ in range(2000):
        fine.step(0.01, 918, 0.8)
    for zone in ("gpu", "cpu", "soc0", "tj"):
        assert coarse.temperature_c(zone) == pytest.approx(fine.temperature_c(zone), abs=1e-6)


def test_a_board_that_heats_faster_is_the_same_board_sooner() -> None:
    plain, fast = PlantModel(QUIET), PlantModel(faster(QUIET, 20))
    plain.fan_works = fast.fan_works = False
    before = plain.temperature_c("tj")
    for plant, dt_s in ((plain, 2.0), (fast, 0.1)):
        plant.step(1e-9, 306, 0.0)  # the first look of the fan control
        for _ in range(20):
            plant.step(dt_s, 918, 0.8)
    assert plain.temperature_c("tj") > before + 10
    for zone in ("gpu", "cpu", "soc0", "tj"):
        assert fast.temperature_c(zone) == pytest.approx(plain.temperature_c(zone), abs=1e-6)
    assert faster(QUIET, 20).window_ms == QUIET.window_ms, "sensors are as slow as ever"


def test_one_step_is_the_closed_form() -> None:
    plant = PlantModel(dataclasses.replace(QUIET, sink_full_fan_r=0.5, sink_no_fan_r=0.5), ambient_c=20)
    p0 = plant.board_w
    p1 = plant.step(7.0, 1300.5, 1.0)
    rise = 0.25 * (1 - math.exp(-70)) + 0.4 * (1 - math.exp(-7 / 20)) + 0.5 * (1 - math.exp(-7 / 200))
    assert plant.temperature_c("gpu") == pytest.approx(20 + 1.15 * p0 + rise * (p1 - p0), abs=1e-9)


def test_sliding_sensor_shows_430_ms_in_whole_steps() -> None:
    plant = PlantModel(dataclasses.replace(QUIET, register_held=False))
    before = plant.rails_w["gpu"]
    plant.step(0.2, 1300.5, 1.0)
    millivolts, milliamps = plant.read_rail("VDD_GPU_SOC")
    expected = before + (plant.rails_w["gpu"] - before) * 0.2 / 0.43
    assert milliamps % 20 == 0 and millivolts * milliamps / 1e6 == pytest.approx(expected, abs=0.19)
    plant.step(0.3, 1300.5, 1.0)
    assert plant.read_rail("VDD_GPU_SOC")[1] == round(plant.rails_w["gpu"] * 1e6 / 19_000 / 20) * 20


def test_held_register_is_renewed_once_a_window() -> None:
    plant = PlantModel(QUIET, seed=5)
    shown = []
    for i in range(200):
        plant.step(0.01, 1300.5, i / 200)
        shown.append(plant.read_rail("VDD_GPU_SOC"))
    changes = [i for i in range(1, 200) if shown[i] != shown[i - 1]]
    assert len(changes) in (4, 5) and all(42 <= b - a <= 44 for a, b in pairwise(changes))


def test_temperatures_come_in_32nds() -> None:
    plant = PlantModel()
    read = {plant.read_temperature_mc("gpu") for _ in range(200)}
    assert len(read) > 5 and all(abs(mc * 32 / 1000 - round(mc * 32 / 1000)) < 0.04 for mc in read)


def test_a_dead_fan_is_hotter() -> None:
    works, dead = PlantModel(), PlantModel(fan_works=False)
    for plant in (works, dead):
        for _ in range(6000):
            plant.step(0.1, 612, 1.0)
    assert dead.temperature_c("tj") > works.temperature_c("tj") + 20 and dead.fan_pwm == 0 < works.fan_pwm


def test_the_board_obeys_max_freq_and_rounds(plant: PlantBoard) -> None:
    top = plant.advance(1.0, 1.0)
    cap = plant.root / AGX.devfreq / "max_freq"
    cap.write_text("700000000\n")
    capped = plant.advance(1.0, 1.0)
    assert capped < top - 15
    assert cap.read_text() == "612000000\n" and (plant.root / AGX.devfreq / "cur_freq").read_text() == "612000000\n"
    cap.write_text("")  # a writer between truncating and writing
    assert plant.gpu_hz() == 612_000_000
    cap.write_text("1\n")
    assert plant.gpu_hz() == 306_000_000 == int(cap.read_text())
    (plant.root / AGX.devfreq / "min_freq").write_text("")
    plant.advance(0.1, 0.0)
    assert (plant.root / AGX.devfreq / "cur_freq").read_text() == "306000000\n", "idle clock"


def test_jetson_clocks_pins_the_idle_clock(plant: PlantBoard) -> None:
    (plant.root / AGX.devfreq / "min_freq").write_text("918000000\n")
    plant.advance(0.1, 0.0)
    assert (plant.root / AGX.devfreq / "cur_freq").read_text() == "918000000\n"
    (plant.root / AGX.devfreq / "max_freq").write_text("408000000\n")
    plant.advance(0.1, 0.0)
    assert (plant.root / AGX.devfreq / "cur_freq").read_text() == "408000000\n", "max wins over min"


def test_no_half_written_value_is_ever_seen(plant: PlantBoard, agx: BoardFacts) -> None:
    stop = threading.Event()

    def spin() -> None:
        while not stop.is_set():
            plant.advance(0.1, 0.5)

    thread = threading.Thread(target=spin)
    thread.start()
    try:
        sensors = Sensors(plant.root, agx)
        assert all(sensors.read().faults == () for _ in range(200))
    finally:
        stop.set()
        thread.join()


def test_tree_is_refused_where_something_else_lives(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("data")
    with pytest.raises(PowerError, match="holds something else"):
        build_tree(tmp_path, AGX)
    with pytest.raises(PowerError, match="cannot be built at /"):
        build_tree(Path("/"), AGX)
    build_tree(tmp_path / "new", AGX)
    (tmp_path / "new" / AGX.gpu / "load").write_text("999\n")
    build_tree(tmp_path / "new", AGX)
    assert (tmp_path / "new" / AGX.gpu / "load").read_text() == "0\n", "an earlier plant is renewed"


def test_busy_counter_files(tmp_path: Path) -> None:
    path = tmp_path / "busy"
    assert read_busy_file(path) is None
    write_busy_file(path, 123, 45)
    assert read_busy_file(path) == (123, 45)
    for torn in ("", "123", "123 45", "-1 4\n", "1 2 3\n", "a b\n"):
        path.write_text(torn)
        assert read_busy_file(path) is None, torn


class _Ticks(threading.Event):
    """A stop event that is set after n waits, without sleeping longer than asked."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.left = n

    def wait(self, timeout: float | None = None) -> bool:
        self.left -= 1
        return super().wait(timeout) or self.left < 0


def test_runner_turns_the_counter_into_load(plant: PlantBoard, capsys: pytest.CaptureFixture[str]) -> None:
    counters = iter([None, (100, 0), (200, 75), (200, 75)])
    loads: list[float] = []
    plant.advance = lambda dt_s, busy: loads.append(busy) or 0.0  # type: ignore[method-assign, func-returns-value]
    runner.run(plant, lambda: next(counters), _Ticks(4), tick_s=0.001)
    assert loads == [0.0, 0.0, 0.75, 0.0]
    assert capsys.readouterr().err.count("no busy counter yet") == 1


def test_runner_catches_up_lost_time_in_short_steps(plant: PlantBoard, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0, 350_000_000])
    monkeypatch.setattr("orind.power.plant.runner.time.monotonic_ns", lambda: next(clock))
    steps: list[float] = []
    plant.advance = lambda dt_s, busy: steps.append(dt_s) or 0.0  # type: ignore[method-assign, func-returns-value]
    runner.run(plant, lambda: None, _Ticks(1), tick_s=0.001)
    assert sum(steps) == pytest.approx(0.35) and max(steps) <= 0.1


def test_runner_ends_when_its_parent_is_another(plant: PlantBoard) -> None:
    runner.run(plant, lambda: None, threading.Event(), tick_s=0.001, parent=os.getppid() + 1)


@pytest.mark.parametrize("arguments", [["--root", "x", "--tick-ms", "1"], ["--root", "x", "--ambient", "200"],
                                       ["--root", "x", "--thermal-speed", "0"], []])
def test_runner_usage(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        runner.main(arguments)
    assert caught.value.code == 2


def test_runner_refuses_a_foreign_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "precious").write_text("data")
    assert runner.main(["--root", str(tmp_path)]) == 1
    assert "holds something else" in capsys.readouterr().err


def _gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def _wait(what: str, done: object) -> None:
    assert callable(done)
    end = time.monotonic() + 30
    while not done():
        assert time.monotonic() < end, f"{what} did not happen"
        time.sleep(0.01)


def test_runner_as_a_process_obeys_follows_and_ends_on_sigterm(tmp_path: Path) -> None:
    busy, root = tmp_path / "busy", tmp_path / "board"
    write_busy_file(busy, 1, 0)
    process = subprocess.Popen([sys.executable, "-m", "orind.power.plant", "--root", str(root), "--busy-file",
                                str(busy), "--tick-ms", "20"], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None and process.stdout.readline().startswith("plant: AGX Orin under")
        load = root / AGX.gpu / "load"
        counter = iter(range(2, 10**6))

        def loaded() -> bool:
            t = next(counter) * 10**6
            write_busy_file(busy, t, t)
            return load.read_text() == "1000\n"

        _wait("the load", loaded)
        (root / AGX.devfreq / "max_freq").write_text("500000000\n")
        _wait("rounding", lambda: (root / AGX.devfreq / "max_freq").read_text() == "408000000\n")
    finally:
        process.send_signal(signal.SIGTERM)
        status = process.wait(timeout=30)
        if process.stdout is not None:
            process.stdout.close()
    assert status == 0
    assert (root / AGX.zone_file("tj")).read_text().strip().isdigit(), "the last values stay"


def test_runner_ends_with_its_parent(tmp_path: Path) -> None:
    # the shell says its child's pid once the plant runs, then waits to be killed
    script = f'"{sys.executable}" -m orind.power.plant --root "{tmp_path / "board"}" --tick-ms 20 & echo $!; wait'
    shell = subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert shell.stdout is not None
    pid = int(shell.stdout.readline())
    assert shell.stdout.readline().startswith("plant: ")
    shell.kill()
    shell.wait()
    shell.stdout.close()
    _wait("the plant's end", lambda: _gone(pid))


def test_signals_of_the_process_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """main() in-process: builds the tree, installs handlers, runs until stopped."""
    handlers: dict[int, object] = {}
    monkeypatch.setattr("orind.power.plant.runner.signal.signal", handlers.__setitem__)

    def stop_soon(*_: object, **__: object) -> None:
        handler = handlers[signal.SIGTERM]
        assert callable(handler)
        handler(signal.SIGTERM, None)

    seen: list[bool] = []
    real_run = runner.run

    def run(board: PlantBoard, read: object, stop: threading.Event, *rest: object) -> None:
        assert callable(read)
        seen.append(read() is None)
        stop_soon()
        real_run(board, read, stop)
        assert stop.is_set()

    monkeypatch.setattr(runner, "run", run)
    assert runner.main(["--root", str(tmp_path / "a"), "--busy-file", str(tmp_path / "none")]) == 0
    assert runner.main(["--root", str(tmp_path / "b")]) == 0
    assert seen == [True, True]
