"""The engine process: maps the plans and the slots, says READY after its golden check, then answers batches.

Started by the nursery (`python -m orind.daemon.engine CHANNEL FAULT SLOTS RESULTS PLAN... START`). Imports no zmq, yaml
or pydantic. Invariant: whatever goes wrong with one frame is that frame's error; whatever goes wrong with the engine is
its last word and a non-zero exit.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import sys
import time

from ..ipc import engine_messages as messages
from ..ipc.channel import Channel
from ..ipc.results import ResultArea
from ..ipc.slots import SlotReader
from ..kernels.devices import open_device
from .engine_loop import EngineLoop, in_words
from .lifeline import begin_child, go_before_main
from .priority import StandingBack


def main() -> int:
    begin_child()
    go_before_main()
    channel_fd, fault_fd, slots_fd, results_fd, *plan_fds = map(int, sys.argv[1:-1])
    start = json.loads(sys.argv[-1])
    priority = StandingBack(start["others_serve"])
    faulthandler.enable(file=fault_fd, all_threads=False)
    channel = Channel.from_fd(channel_fd, blocking=True)
    try:
        slots = SlotReader(slots_fd, *start["slots"])
        areas, frames, rows_max, row_width = start["results"]
        results = ResultArea(areas, frames, rows_max, row_width, results_fd)
        if start["device"] != "cpu":  # where nothing is logged, and the module saved
            from .log_line import log_to_stderr

            log_to_stderr()
        device = open_device(start["device"], start["cpu_steps"])
        loop = EngineLoop.open(
            channel, slots, results, plan_fds, device, start["heartbeat_ms"], start["emergency_bytes"]
        )
    except Exception as error:  # noqa: BLE001 whatever keeps it from starting must reach main in words
        channel.send(messages.pack_fault(time.monotonic_ns(), f"cannot start: {in_words(error)}"))
        return 1
    gc.collect()
    gc.freeze()
    gc.disable()
    code = loop.run(priority.come_back)
    if code == 0:
        device.close()
    return code


if __name__ == "__main__":
    sys.exit(main())
