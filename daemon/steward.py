"""The steward process: reads the board, governs its clocks, tells main what to obey.

Started by the nursery (`python -m orind.daemon.steward CHANNEL STATS SECTION`). Main's messages: another policy, what
was asked for on the control socket, what deadlines need. Ends when main is gone, and puts the clocks back before it
does. A real /sys is touched only when the configuration's power.root says so.
"""

from __future__ import annotations

import json
import select
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ..ipc.channel import Channel
from ..ipc.clock import wall_offset_ns
from ..ipc.errors import StatsPageError
from ..ipc.stats_page import StatsReader
from ..power import fan_profile
from ..power.actuators import Caps
from ..power.board import BoardFacts
from ..power.budget import Asked, Outside
from ..power.errors import PowerError
from ..power.governor import Governor
from ..power.jtop_readings import seen_through_jtop
from ..power.limits import Limits
from ..power.policy import Policy
from ..power.sensors import Sensors
from ..power.steward import Steward
from ..power.sysfs import Sysfs
from .jtop_source import JtopSource
from .lifeline import begin_child
from .memory_clock import MemoryClock


def main() -> int:
    begin_child()
    channel = Channel.from_fd(int(sys.argv[1]), blocking=False)
    stats = StatsReader(int(sys.argv[2]))
    section: dict[str, Any] = json.loads(sys.argv[3])
    facts, policy = BoardFacts.from_dict(section["board"]), Policy.from_dict(section["policy"])
    root = Path(section["root"])
    heard = Heard()
    jtop = JtopSource(section["jtop_python"], facts) if section.get("jtop_python") else None
    with ExitStack() as opened:
        if jtop is not None:
            opened.callback(jtop.close)
            # clocks that an earlier steward left lowered stay so meanwhile
            jtop.wait_for_first()
        try:
            caps = Caps(root, facts, Path(section["state"]))
            steward = Steward(
                jtop or Sensors(root, facts),
                caps,
                Governor(seen_through_jtop(facts) if jtop else facts, policy),
                lambda: _busy(stats),
                lambda limits: _send(channel, limits),
                look_outside=heard.outside,
            )
        except PowerError as error:
            _say(channel, {"error": str(error)})
            return 1
        opened.callback(steward.close)
        memory = MemoryClock(root)
        opened.callback(memory.close)
        # before the clocks go back: main holds its lowest pacing from the end of file on
        opened.callback(channel.close)
        _govern(steward, policy, channel, heard, memory, Sysfs(root), facts.model.idle_mw)
    return 0


class Heard:
    """What main said last of the world outside of the board."""

    def __init__(self) -> None:
        self._asked: dict[str, Asked | None] = {}

    def take(self, asked: dict[str, list[Any] | None]) -> None:
        """By name of a field of Outside: [value, until_ns, by], or null where it does not hold any more."""
        for name, value in asked.items():
            self._asked[name] = None if value is None else Asked(*value)

    def outside(self) -> Outside:
        """As Steward.look_outside."""
        wall_s = (time.monotonic_ns() + wall_offset_ns()) / 1e9
        return Outside(wall_s, **self._asked)


def _govern(
    steward: Steward, policy: Policy, channel: Channel, heard: Heard, memory: MemoryClock, sysfs: Sysfs,
    idle_mw: float,
) -> None:
    """Tick until main hangs up. Ticks keep their phase; one that was missed is not made up for."""
    poller = select.poll()
    poller.register(channel, select.POLLIN)
    board = sysfs.read_model()
    next_ns = time.monotonic_ns()
    while True:
        wait_ms = max(0, next_ns - time.monotonic_ns()) / 1e6
        if poller.poll(wait_ms):
            received = channel.recv_all()
            for data in received.messages:
                message = json.loads(data)
                heard.take(message.get("asked", {}))
                if "policy" in message:
                    policy = Policy.from_dict(message["policy"])
                    steward.adopt(policy)
            if received.ended:
                return
        if time.monotonic_ns() < next_ns:
            continue
        next_ns = max(next_ns + policy.tick_ns, time.monotonic_ns())
        report = steward.tick()
        _say(channel, {"sample": report.power_sample(idle_mw).to_json()})
        emc = memory.look(time.monotonic_ns())
        fan = fan_profile.shown(sysfs) if report.decision.setting.fan_profile else None
        _say(channel, {"report": {"board": board, **report.to_dict(), **emc, "fan_profile_active": fan}})


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
