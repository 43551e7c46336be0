"""What jtop's service says of the board, a line of JSON a sample, until standard input ends.

Run as `PYTHON jtop_reader.py INTERVAL_S` with an interpreter that has jetson-stats (AGPL-3.0), which is imported here,
in a process of its own, and nowhere else in orind. A sample: {"began_ns": CLOCK_MONOTONIC when the service began to
collect it, "interval_s": the service's, "rails": {label: [mV, mA]}, "zones": {name: milli-degrees C or null},
"gpu_hz", "gpu_permille", "cpu_khz", "fan_permille"}; the last words of one that cannot go on: {"error": text}. Exit
code 1 then. Nothing is judged here, and nothing of the board is changed.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from typing import Any

OFFLINE_C = -256  # how jtop shows a zone that it cannot read


def main(arguments: list[str]) -> int:
    threading.Thread(target=_end_with_standard_input, daemon=True).start()
    try:
        from jtop import JtopException, jtop
    except ImportError as error:
        return _give_up(f"{sys.executable} has no jetson-stats: {error}")
    try:
        with jtop(interval=float(arguments[0])) as board:
            while board.ok():
                _say(_sample(board))
        return _give_up("jtop's service has stopped sending")
    except (JtopException, OSError, EOFError) as error:
        return _give_up(" ".join(str(error).split()) or type(error).__name__)


def _sample(board: Any) -> dict[str, Any]:
    with open("/proc/uptime") as file:
        age_s = float(file.read().split()[0]) - board.uptime.total_seconds()
    power = board.power
    rails = dict(power["rail"])
    if "name" in power["tot"]:  # a rail that measures the whole board is there alone
        rails[power["tot"]["name"]] = power["tot"]
    gpu = next(iter(board.gpu.values()), None)
    clocks = [cpu["freq"]["cur"] for cpu in board.cpu["cpu"] if cpu["online"]]
    speeds = [speed for fan in board.fan.values() for speed in fan["speed"]]
    return {
        "began_ns": time.monotonic_ns() - round(max(age_s, 0.0) * 1e9),
        "interval_s": board.interval,
        "rails": {label: [rail["volt"], rail["curr"]] for label, rail in rails.items() if "curr" in rail},
        "zones": {name: None if zone["temp"] == OFFLINE_C else round(zone["temp"] * 1000)
                  for name, zone in board.temperature.items()},
        "gpu_hz": None if gpu is None else gpu["freq"]["cur"] * 1000,
        "gpu_permille": None if gpu is None else round(gpu["status"]["load"] * 10),
        "cpu_khz": max(clocks, default=None),
        "fan_permille": round(max(speeds) * 10) if speeds else None,
    }


def _say(message: dict[str, Any]) -> None:
    print(json.dumps(message), flush=True)


def _give_up(text: str) -> int:
    _say({"error": text})
    return 1


def _end_with_standard_input() -> None:
    while os.read(0, 4096):
        pass
    os._exit(0)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)  # jtop's threads may wait for a service that is gone
