"""The product's sensors, caps and steward over a mounted board (fuse_board.py); prints what they saw as JSON.

Run by test_fuse.py in a mount namespace of its own, so that the mount goes when it ends, however it ends.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from closed_loop import facts_of

from orind.power.actuators import Caps
from orind.power.errors import SysfsError
from orind.power.governor import Governor
from orind.power.limits import Limits
from orind.power.plant.board import PlantBoard
from orind.power.plant.model import PlantModel
from orind.power.policy import Policy
from orind.power.sensors import Sensors
from orind.power.steward import Report, Steward
from orind.power.sysfs import Sysfs

MOUNT_S = 20.0
TICK_NS = 10**8


class Loop:
    """Steward over the mount, physics over the tree, time ours."""

    def __init__(self, plant: PlantBoard, mount: Path) -> None:
        facts = facts_of("agx-orin")
        self.plant, self.now_ns, self.busy_ns = plant, 10**9, 0
        self.limits: list[Limits] = []
        self.steward = Steward(Sensors(mount, facts), Caps(mount, facts, mount.with_name("state.json")),
                               Governor(facts, Policy.from_dict({"budget_w": 30})),
                               lambda: (self.now_ns, self.busy_ns), self.limits.append, lambda: self.now_ns)

    def run(self, seconds: float, busy: float) -> Report:
        for _ in range(round(seconds * 10)):
            report = self.steward.tick()
            self.plant.advance(0.1, busy)
            self.now_ns += TICK_NS
            self.busy_ns += round(busy * TICK_NS)
        return report

    def seen(self, seconds: float, busy: float) -> dict[str, Any]:
        report = self.run(seconds, busy)
        return {"faults": report.faults, "hot": report.decision.hot, "zones": sorted(report.readings.zones_mc),
                "level": self.limits[-1].level}


def scenario(plant: PlantBoard, mount: Path) -> dict[str, Any]:
    told: dict[str, Any] = {}
    sysfs, tree = Sysfs(mount), plant.root
    zone = os.open(mount / plant.layout.zone_file("cv0"), os.O_RDONLY)
    try:
        os.read(zone, 64)
    except OSError as error:
        told["cv"] = error.errno
    os.close(zone)
    loop = Loop(plant, mount)
    told["well"] = loop.seen(0.5, 0.0)
    (tree / ".gpu-gated").touch()
    told["gated in idle"] = loop.seen(1.0, 0.0)
    (tree / ".caps-refused").touch()
    loop.steward._caps.set_gpu_max = _other(loop)  # type: ignore[method-assign]
    told["refused"] = loop.seen(0.2, 0.0)
    (tree / ".caps-refused").unlink()
    told["gated under load"] = loop.seen(1.0, 1.0)
    mask = f"{plant.layout.gpu}/tpc_pg_mask"
    sysfs.write_int(mask, 0)
    for name, path, value in (("mask", mask, 248), ("cap", plant.layout.max_freq, -5)):
        try:
            sysfs.write_int(path, value)
        except SysfsError as error:
            told[name] = str(error)
    return told


def _other(loop: Loop) -> Any:
    """The governor may find the right cap there already: ask for another one, so that it is written."""
    real = loop.steward._caps.set_gpu_max
    return lambda hz, reason: real(306_000_000, reason)


def main() -> int:
    folder = Path(sys.argv[1])
    mount = folder / "mount"
    mount.mkdir()
    plant = PlantBoard(folder / "board", PlantModel(seed=1))
    board = Path(__file__).with_name("fuse_board.py")
    with subprocess.Popen([sys.executable, str(board), str(plant.root), str(mount)]) as served:
        end = time.monotonic() + MOUNT_S
        while not os.path.ismount(mount):
            if served.poll() is not None or time.monotonic() > end:
                raise SystemExit("the board was not mounted")
            time.sleep(0.02)
        try:
            print(json.dumps(scenario(plant, mount)))
        finally:
            served.kill()
    return 0


if __name__ == "__main__":
    sys.exit(main())
