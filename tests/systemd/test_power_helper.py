"""The power helper as a unit under a real systemd, hardening on, over a simulated board."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from installed import Installed
from machine import MachineError

SOCKET, HELPER = "orind-power.socket", "orind-power.service"
BOARD = "/opt/board"
PLANT = f"""
from pathlib import Path
from orind.power.plant.modules import AGX_ORIN, JETPACKS
from orind.power.plant.tree import Layout, build_tree
build_tree(Path("{BOARD}"), Layout(AGX_ORIN, JETPACKS["6"], 0))
"""
DROP_IN = f"""[Service]
ExecStart=
ExecStart=/opt/orind/bin/python -I -m orind.daemon.power_helper --root {BOARD}
ReadWritePaths={BOARD}
"""
AS_CLERK = ["setpriv", "--reuid", "clerk", "--regid", "clerk", "--init-groups"]


@pytest.fixture
def helper(installed: Installed) -> Iterator[Installed]:
    """Its socket listens; the board is a plant's tree. User clerk is in group orind, user guest is not."""
    orind, machine = installed, installed.machine
    machine.run("/opt/orind/bin/python", "-I", "-c", PLANT)
    for name in ("clerk", "guest"):
        machine.run("useradd", "-M", "-U", name, check=False)
    machine.run("usermod", "-aG", "orind", "clerk")
    orind.write(f"/run/systemd/system/{HELPER}.d/board.conf", DROP_IN)
    orind.systemctl("daemon-reload")
    orind.systemctl("start", SOCKET)
    yield orind
    orind.systemctl("stop", SOCKET, HELPER)
    machine.run("rm", "-r", f"/run/systemd/system/{HELPER}.d", BOARD)
    orind.systemctl("daemon-reload")


def test_a_member_of_the_group_enters_a_mode_and_nobody_else_does(helper: Installed) -> None:
    orind = "/opt/orind/bin/orind"
    assert helper.show("ActiveState", HELPER) == "inactive", "it is started by the first who asks"
    assert helper.machine.run(*AS_CLERK, orind, "power", "mode", "MODE_50W") == "MODE_50W is active\n"
    assert helper.machine.path(f"{BOARD}/var/lib/nvpmodel/status").read_text().startswith("pmode:0003")
    assert helper.machine.run(*AS_CLERK, orind, "power", "fan", "quiet") == "fan profile quiet is active\n"
    with pytest.raises(MachineError, match=r"ended with 1: orind power: MODE_30W needs a reboot"):
        helper.machine.run(*AS_CLERK, orind, "power", "mode", "MODE_30W")
    assert "waits for the next boot" in helper.machine.run(*AS_CLERK, orind, "power", "mode", "MODE_30W", "--stage")
    as_guest = ["setpriv", "--reuid", "guest", "--regid", "guest", "--clear-groups"]
    with pytest.raises(MachineError, match=r"ended with 69: .*Permission denied: are you in the group orind"):
        helper.machine.run(*as_guest, orind, "power", "mode", "MAXN")
    assert helper.show("NRestarts", HELPER) == "0"


def test_what_its_hardening_forbids_is_forbidden(helper: Installed) -> None:
    """Tried from within its own sandbox."""
    tries = f"""#!/bin/bash
    for place in / /etc /opt/orind /usr /root /home /run /run/orind /dev; do
        if touch "$place/probe" 2>/dev/null; then echo "wrote $place"; fi
    done
    touch {BOARD}/probe && echo "wrote the board"
    grep -q '^NoNewPrivs:.*1$' /proc/self/status && grep -q '^CapEff:.*0000000000000000$' /proc/self/status && echo bare
    systemctl stop nvfancontrol.service && systemctl start nvfancontrol.service && echo "restarts the fan's service"
    python3 -c 'import socket; socket.socket(socket.AF_INET)' 2>/dev/null && echo "has a network"
    true
    """
    helper.write("/opt/orind/bin/tries", tries, mode="755")
    helper.write("/run/systemd/system/nvfancontrol.service", "[Service]\nExecStart=/bin/sleep infinity\n")
    helper.write(f"/run/systemd/system/{HELPER}.d/tries.conf", "[Service]\nExecStartPre=/opt/orind/bin/tries\n")
    helper.systemctl("daemon-reload")
    helper.machine.run(*AS_CLERK, "/opt/orind/bin/orind", "power", "mode", "MODE_50W")
    helper.machine.run("journalctl", "--sync")
    said = re.findall(r"tries\[\d+\]: (.*)", helper.machine.run("journalctl", "-u", HELPER))
    assert said == ["wrote the board", "bare", "restarts the fan's service"]


def test_security_score(helper: Installed) -> None:
    said = helper.machine.run("systemd-analyze", "security", "--no-pager", HELPER, check=False)
    verdict = re.findall(r"Overall exposure level for orind-power.service: ([\d.]+) (\w+)", said)
    print(f"systemd-analyze security: {verdict[0][0]} {verdict[0][1]}")
    assert float(verdict[0][0]) <= 3.0
