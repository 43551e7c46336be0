"""The two boards that `scripts/hil` runs a scenario on: a simulated one in real time, and a real one.

Used by hil_run.py. Both have a root for the daemon, sensors that can be broken, and a way to change the mode behind the
daemon's back; neither lets anything of the daemon know which it is. A real board's sensors are broken for the daemon
alone: it sees the board through a tree of links, some of which then lead elsewhere.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from harness import ServiceError

from orind.ipc.errors import StatsPageError
from orind.ipc.stats_page import StatsReader
from orind.power import mode_switch, programs
from orind.power.board import BoardFacts
from orind.power.nvpmodel import read_conf
from orind.power.plant.busy import write_busy_file
from orind.power.sysfs import Sysfs

FASTER = 20.0
"""What the thermal time constants of the simulated board are divided by."""
START_TIMEOUT_S = 20.0
FEED_S = 0.02


class Board(Protocol):
    """`root`: of the tree that the daemon and the samples see."""

    kind: str
    root: Path

    def open(self) -> None: ...
    def close(self) -> None: ...
    def serve(self, stats_page: str) -> None: ...
    def break_sensors(self, faults: Mapping[str, int | str]) -> None: ...
    def set_surroundings(self, name: str, value: float | bool) -> None: ...
    def enter_mode_behind(self, name: str) -> None: ...


class VirtualBoard:
    """The plant as a process, heated and cooled FASTER times as fast; its GPU is as busy as the daemon's engines."""

    kind = "virtual"

    def __init__(self, work: Path, module: str, ambient_c: float, fan: str | None, seed: int, log: Path) -> None:
        self.root = work / "board"
        self._faults_file, self._busy_file = work / "faults.json", work / "busy"
        self._command = [
            sys.executable, "-m", "orind.power.plant", "--root", str(self.root), "--module", module, "--ambient",
            f"{ambient_c:g}", "--seed", str(seed), "--tick-ms", "50", "--busy-file", str(self._busy_file), "--faults",
            str(self._faults_file), "--thermal-speed", f"{FASTER:g}", *(["--fan", fan] if fan else []),
        ]
        self._log = log
        self._faults: dict[str, Any] = {}
        self._child: subprocess.Popen[bytes] | None = None
        self._over = threading.Event()
        self._feeder: threading.Thread | None = None

    def open(self) -> None:
        """Raises ServiceError when it does not come up."""
        with self._log.open("wb") as log:
            self._child = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        end_s = time.monotonic() + START_TIMEOUT_S
        while "plant: " not in self._log.read_text():
            if self._child.poll() is not None or time.monotonic() > end_s:
                raise ServiceError(f"the simulated board did not start: {self._log.read_text()}")
            time.sleep(0.05)

    def serve(self, stats_page: str) -> None:
        """From now on the GPU is as busy as that page of the daemon says."""
        reader = StatsReader(os.open(stats_page, os.O_RDONLY | os.O_CLOEXEC))
        self._feeder = threading.Thread(target=self._feed, args=(reader,), name="busy", daemon=True)
        self._feeder.start()

    def _feed(self, reader: StatsReader) -> None:
        while not self._over.wait(FEED_S):
            with contextlib.suppress(StatsPageError):  # main is writing: the next time
                counters = reader.read_counters()
                write_busy_file(self._busy_file, counters.now_ns, counters.busy_ns)
        reader.close()

    def break_sensors(self, faults: Mapping[str, int | str]) -> None:
        """These and no others. The names were checked when the scenario was read."""
        self._tell(
            missing=[name for name, fault in faults.items() if fault == "missing"],
            stuck=[name for name, fault in faults.items() if fault == "stuck"],
            forced={name: fault for name, fault in faults.items() if isinstance(fault, int)},
        )

    def set_surroundings(self, name: str, value: float | bool) -> None:
        self._tell(**{name: value})

    def enter_mode_behind(self, name: str) -> None:
        """As a restart of nvpmodel.service does."""
        _run_nvpmodel(self.root, name)

    def _tell(self, **faults: Any) -> None:
        self._faults.update(faults)
        draft = self._faults_file.with_suffix(".new")
        draft.write_text(json.dumps(self._faults))
        draft.replace(self._faults_file)

    def close(self) -> None:
        self._over.set()
        if self._feeder is not None:
            self._feeder.join(5)
        if self._child is not None:
            self._child.terminate()
            try:
                self._child.wait(10)
            except subprocess.TimeoutExpired:
                self._child.kill()
                self._child.wait()


class RealBoard:
    """An Orin. Its settings are recorded and put back by hil.py; here only what a scenario does to it."""

    kind = "real"

    def __init__(self, root: Path, facts: BoardFacts, tap: Path | None) -> None:
        """tap: a folder for the tree of links, where the scenario breaks sensors; None: the daemon sees the board."""
        self._board, self._facts, self._tap = root, facts, tap
        self.root = tap or root

    def open(self) -> None:
        if self._tap is not None:
            _link_tree(self._tap, self._board)

    def serve(self, stats_page: str) -> None:
        """A real GPU is busy by itself."""

    def break_sensors(self, faults: Mapping[str, int | str]) -> None:
        """As VirtualBoard. A stuck sensor shows its present value for ever."""
        assert self._tap is not None, "the scenario breaks sensors, so that there is a tree of links"
        _link_tree(self._tap, self._board)
        for name, fault in faults.items():
            path = self._tap / self._file_of(name)
            value = path.read_text() if fault == "stuck" else f"{fault}\n"
            path.unlink()
            if fault != "missing":
                path.write_text(value)

    def _file_of(self, name: str) -> str:
        sysfs = Sysfs(self._board)
        zones, rails = sysfs.find_zones(), sysfs.find_rails()
        if name in rails:
            return rails[name][1]
        kinds = next((zone.types for zone in self._facts.zones if zone.name == name), ())
        found = next((zones[kind] for kind in kinds if kind in zones), None)
        if found is None:
            known = sorted({*rails, *(zone.name for zone in self._facts.zones)})
            raise ServiceError(f"no sensor {name} (known: {', '.join(known)})")
        return f"{found}/temp"

    def set_surroundings(self, name: str, value: float | bool) -> None:
        raise ServiceError(f"{name} of a real board cannot be set")

    def enter_mode_behind(self, name: str) -> None:
        """nvpmodel itself, with nothing on its standard input: it cannot ask, so it cannot reboot."""
        _run_nvpmodel(self._board, name)

    def close(self) -> None:
        """Nothing of ours runs on it."""


def _run_nvpmodel(root: Path, name: str) -> None:
    """Raises ServiceError for a mode that the board has not; how the program ends is for the daemon to find out."""
    conf = read_conf(Sysfs(root))
    mode = conf.mode(name)
    if mode is None:
        raise ServiceError(f"no mode {name} (known: {', '.join(m.name for m in conf.modes)})")
    programs.run(Sysfs(root), "nvpmodel", ["-m", str(mode.id)], mode_switch.TIMEOUT_S)


def _link_tree(tap: Path, board: Path) -> None:
    """The board's tree as links: whole folders, but for zones and hwmons, each file of which is a link of its own."""
    for path in ("etc", "var", "usr", "sys/firmware", "sys/devices", "sys/kernel", "sys/class/devfreq"):
        _link(tap / path, board / path)
    for kind in ("sys/class/thermal", "sys/class/hwmon"):
        for node in sorted((board / kind).iterdir()):
            for file in sorted(node.iterdir()):
                _link(tap / kind / node.name / file.name, file)


def _link(at: Path, to: Path) -> None:
    if at.is_symlink():
        return
    at.parent.mkdir(parents=True, exist_ok=True)
    at.unlink(missing_ok=True)
    at.symlink_to(to.absolute())
