"""Main's side of the steward, and a steward that the test plays."""

from __future__ import annotations

import json
import socket
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml
from stand_ins import Processes, S, turn

from orind.daemon import steward
from orind.daemon.poller import Poller
from orind.daemon.power_link import PowerLink
from orind.ipc.channel import Channel
from orind.ipc.stats_page import StatsWriter
from orind.power.limits import Limits

CONFIGS = Path(__file__).parents[2] / "configs"
SECTION: dict[str, Any] = {
    "board": yaml.safe_load((CONFIGS / "boards" / "agx-orin.yaml").read_text()),
    "mode": "",
    "policy": {"budget_w": 30, "lowest_pace_hz": 5, "tick_ms": 20},
}


class Link:
    """Main's side, and a steward that the test plays."""

    def __init__(self, folder: Path) -> None:
        self.now = 10 * S
        self.poller, self.processes, self.stats = Poller(), Processes(), StatsWriter()
        self.link = PowerLink(self.processes, self.poller, self.stats, folder)

    def steward(self) -> socket.socket:
        started = self.processes.of("steward")[-1]
        sock = socket.socket(fileno=started.fds.pop(0))
        started.close()
        return sock

    def turn(self, passed_ns: int = 0) -> None:
        self.now += passed_ns
        turn(self.poller, self.now)
        self.link.tick(self.now)

    def close(self) -> None:
        self.link.close()
        self.processes.close()
        self.stats.close()


def limits(expires_ns: int) -> bytes:
    return json.dumps({"limits": Limits(expires_ns, 4, 25.0, "warm", "hot day").to_json()}).encode()


def told(steward: socket.socket) -> dict[str, Any]:
    found = json.loads(steward.recv(65_536))
    assert isinstance(found, dict)
    return found


def run_steward(
    monkeypatch: pytest.MonkeyPatch, stats: StatsWriter, section: dict[str, Any], talk: Any
) -> tuple[int, list[dict[str, Any]]]:
    """The process's main here; `talk(sock, said)` plays main in a thread and closes its end."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(30)
    channel = Channel(theirs, blocking=False)
    said: list[dict[str, Any]] = []
    monkeypatch.setattr(steward, "begin_child", lambda: None)
    monkeypatch.setattr(steward.Channel, "from_fd", lambda fd, blocking: channel)
    monkeypatch.setattr(sys, "argv", ["steward", "0", str(stats.readonly_fd()), json.dumps(section)])
    main = threading.Thread(target=talk, args=(ours, said))
    main.start()
    code = steward.main()
    channel.close()
    main.join(30)
    ours.close()
    return code, said
