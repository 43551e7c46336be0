"""Runs the plant in real time beside a daemon: `python -m orind.power.plant --root DIR`.

Invariants: it ends with its parent or on SIGTERM; time that the machine lost is caught up in the model, not skipped;
while the busy counter cannot be read the GPU counts as idle, and that is said once on stderr.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from ..errors import PowerError
from .board import PlantBoard
from .busy import read_busy_file
from .constants import faster
from .fault_file import FaultFile
from .model import PlantModel
from .modules import JETPACKS, MODULES

_LONGEST_STEP_S = 0.1


def run(board: PlantBoard, read_busy: Callable[[], tuple[int, int] | None], stop: threading.Event,
        tick_s: float = 0.1, parent: int | None = None, faults: FaultFile | None = None) -> None:
    """Advance the board in real time until `stop` is set or the parent process is no longer `parent`. `read_busy` gives
    (now_ns, busy_ns) of the engines, or None while it is not known."""
    before_ns = time.monotonic_ns()
    last: tuple[int, int] | None = None
    told = False
    while not stop.wait(tick_s) and (parent is None or os.getppid() == parent):
        wrong = None if faults is None else faults.apply()
        if wrong is not None:
            print(f"plant: {wrong}", file=sys.stderr, flush=True)
        counter = read_busy()
        now_ns = time.monotonic_ns()
        busy = 0.0
        if counter is None and not told:
            print("plant: no busy counter yet, the GPU counts as idle", file=sys.stderr, flush=True)
            told = True
        if counter is not None and last is not None and counter[0] > last[0]:
            busy = min(max((counter[1] - last[1]) / (counter[0] - last[0]), 0.0), 1.0)
        last = counter if counter is not None else last
        left_s = (now_ns - before_ns) / 1e9
        before_ns = now_ns
        while left_s > 0.0:
            step_s = min(left_s, _LONGEST_STEP_S)
            board.advance(step_s, busy)
            left_s -= step_s


def main(arguments: list[str] | None = None) -> int:
    """Entry of `python -m orind.power.plant`; exit codes 0 ended, 1 failed, 2 usage."""
    parser = argparse.ArgumentParser(
        prog="python -m orind.power.plant",
        description="Simulate a Jetson Orin as a directory tree: sensors, clocks, temperatures, in real time.",
        epilog="example: python -m orind.power.plant --root /tmp/orin --ambient 35 --busy-file /tmp/busy")
    parser.add_argument("--root", type=Path, required=True, help="directory of the tree (empty, or an earlier plant)")
    parser.add_argument("--module", choices=sorted(MODULES), default="agx-orin", help="which one (default agx-orin)")
    parser.add_argument("--jetpack", choices=sorted(JETPACKS), default="6", help="whose names (default 6)")
    parser.add_argument("--fan", choices=("quiet", "cool"), help="nvfancontrol profile (default: the module's)")
    parser.add_argument("--ambient", type=float, default=25.0, help="ambient temperature in C (default 25)")
    parser.add_argument("--tick-ms", type=float, default=100.0, help="time between two updates (default 100)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the sensor noise (default 0)")
    parser.add_argument("--faults", type=Path, help="JSON file of faults, which may come and go later (fault_file.py)")
    parser.add_argument("--thermal-speed", type=float, default=1.0, metavar="N",
                        help="heat and cool N times as fast, 1 to 100 (default 1): shorter runs, power as ever")
    parser.add_argument("--busy-file", type=Path, help='path of a file holding "now_ns busy_ns"')
    options = parser.parse_args(arguments)
    if not 10.0 <= options.tick_ms <= 1000.0 or not -40.0 <= options.ambient <= 80.0:
        parser.error("--tick-ms must lie in 10 to 1000 and --ambient in -40 to 80")
    if not 1.0 <= options.thermal_speed <= 100.0:
        parser.error("--thermal-speed must lie in 1 to 100")
    parent = os.getppid()
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    read: Callable[[], tuple[int, int] | None] = lambda: None  # noqa: E731
    if options.busy_file is not None:
        read = lambda: read_busy_file(options.busy_file)  # noqa: E731
    module = MODULES[options.module]
    model = PlantModel(faster(module.constants, options.thermal_speed), options.ambient, options.seed,
                       fan_profile=options.fan or module.fan_profile)
    try:
        board = PlantBoard(options.root, model, module, JETPACKS[options.jetpack])
    except (PowerError, OSError) as error:
        print(f"plant: {error}", file=sys.stderr)
        return 1
    print(f"plant: {module.title} under {options.root}, ambient {options.ambient:g} C", flush=True)
    faults = None if options.faults is None else FaultFile(options.faults, board)
    run(board, read, stop, options.tick_ms / 1000, parent, faults)
    return 0
