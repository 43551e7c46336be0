"""The steward process: reads the board, governs its clocks, tells main what to obey.

Started by the nursery (`python -m orind.daemon.steward CHANNEL STATS SECTION`). Ends when main is gone, and puts the
clocks back before it does. A real /sys is touched only when the configuration's power.root says so.
"""

from __future__ import annotations

import json
import select
import sys
import time
from pathlib import Path
from typing import Any

from ..ipc.channel import Channel
from ..ipc.errors import StatsPageError
from ..ipc.stats_page import StatsReader
from ..power.actuators import Caps
from ..power.board import BoardFacts
from ..power.errors import PowerError
from ..power.governor import Governor
from ..power.limits import Limits
from ..power.policy import Policy
from ..power.sensors import Sensors
from ..power.steward import Steward
from ..power.sysfs import Sysfs
from .lifeline import begin_child
from .memory_clock import MemoryClock


def main() -> int:
    begin_child()
    channel = Channel.from_fd(int(sys.argv[1]), blocking=False)
    stats = StatsReader(int(sys.argv[2]))
    section: dict[str, Any] = json.loads(sys.argv[3])
    facts, policy = BoardFacts.from_dict(section["board"]), Policy.from_dict(section["policy"])
    root = Path(section["root"])
    try:
        caps = Caps(root, facts, Path(section["state"]))
        steward = Steward(
            Sensors(root, facts),
            caps,
            Governor(facts, policy),
            lambda: _busy(stats),
            lambda limits: _send(channel, limits),
        )
    except PowerError as error:
        _say(channel, {"error": str(error)})
        return 1
    memory = MemoryClock(root)
    try:
        _govern(steward, policy, channel, memory, Sysfs(root).read_model())
    finally:
        memory.close()
        steward.close()
    return 0


def _govern(steward: Steward, policy: Policy, channel: Channel, memory: MemoryClock, board: str | None) -> None:
    """Tick until main hangs up. Ticks keep their phase; one that was missed is not made up for."""
    poller = select.poll()
    poller.register(channel, select.POLLIN)
    next_ns = time.monotonic_ns()
    while True:
        wait_ms = max(0, next_ns - time.monotonic_ns()) / 1e6
        if poller.poll(wait_ms) and channel.recv_all().ended:
            return
        if time.monotonic_ns() < next_ns:
            continue
        next_ns = max(next_ns + policy.tick_ns, time.monotonic_ns())
        report = steward.tick()
        emc = memory.look(time.monotonic_ns())
        _say(channel, {"report": {"board": board, **report.to_dict(policy), **emc}})


def _busy(stats: StatsReader) -> tuple[int, int] | None:
    """(now_ns, busy_ns) of the engines as main counts them; None while the page cannot be read."""
    try:
        counters = stats.read_counters()
    except StatsPageError:
        return None
    return counters.now_ns, counters.busy_ns


def _send(channel: Channel, limits: Limits) -> None:
    _say(channel, {"limits": limits.to_json()})


def _say(channel: Channel, message: dict[str, Any]) -> None:
    """A full or closed channel is main's trouble: it falls back to the lowest pacing; end of file ends us next turn."""
    channel.send(json.dumps(message).encode())


if __name__ == "__main__":
    sys.exit(main())
