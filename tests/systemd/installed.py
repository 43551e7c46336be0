"""orind as scripts/install puts it into a machine, driven by systemctl; its sockets reached from the host.

Used by the tests beside it and by scripts/bench_restarts.py. The packages that orind needs at run time are linked from
the environment that runs this, so that nothing is fetched; everything else is what the script does on a board.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml
from machine import Machine, MachineError
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from orind.ipc.client import Publisher
from orind.ipc.control import ControlClient
from orind.ipc.errors import ControlError

UNIT = "orind.service"
CONFIG = "/etc/orind/orind.yaml"
PLAN_DIR = "/var/lib/orind"
RUN_DIR = "/run/orind"
PYTHON = f"/opt/test/python/bin/python{sys.version_info.major}.{sys.version_info.minor}"
WAIT_S = 60.0
DROP_INS = Path("/run/systemd/system/orind.service.d")


def run_time_distributions() -> list[metadata.Distribution]:
    """What orind[systemd] requires, and what that requires, as installed in this environment."""
    waiting, found = [("orind", "systemd")], dict[str, metadata.Distribution]()
    while waiting:
        name, extra = waiting.pop()
        distribution = metadata.distribution(name)
        if canonicalize_name(name) in found:
            continue
        found[canonicalize_name(name)] = distribution
        for text in distribution.requires or []:
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                waiting.append((requirement.name, ""))
    del found["orind"]
    return list(found.values())


def _entries(distribution: metadata.Distribution) -> set[str]:
    """Its files and folders directly below site-packages."""
    tops = {path.parts[0] for path in distribution.files or []}
    return {top for top in tops if top not in ("..", "__pycache__")}


class Installed:
    """orind in a machine. Everything by `systemctl`, but for the questions to its control socket."""

    def __init__(self, machine: Machine) -> None:
        """Installs."""
        self.machine = machine
        self.endpoint = f"ipc://{machine.path(RUN_DIR)}/frames"
        machine.run("/opt/test/source/scripts/install", "--no-dependencies", "--python", PYTHON, timeout_s=120)
        site = next(machine.path("/opt/orind/lib").glob("python3.*")) / "site-packages"
        for distribution in run_time_distributions():
            for name in _entries(distribution):
                (site / name).symlink_to(f"/opt/test/packages/{name}")
        self.begin_journal()

    # -- files ---------------------------------------------------------------------------------------------------

    def configure(self, config: Mapping[str, Any], path: str = CONFIG) -> None:
        """Write a configuration file, owned as scripts/install has it."""
        self.write(path, yaml.safe_dump(dict(config), sort_keys=False), "root:orind", "640")

    def put_plan(self, plan: Path) -> str:
        """Copy a plan to where the unit may read it, -> its path inside."""
        inside = f"{PLAN_DIR}/{plan.name}"
        if not self.machine.path(inside).exists():  # several tests share it
            self.machine.run("install", "-d", "-o", "orind", "-g", "orind", "-m", "750", PLAN_DIR)
            self.machine.path(inside).write_bytes(plan.read_bytes())
            self.machine.run("chown", "root:orind", inside)
        return inside

    def write(self, inside: str, text: str, owner: str = "root:root", mode: str = "644") -> None:
        path = self.machine.path(inside)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        self.machine.run("chown", owner, inside)
        self.machine.run("chmod", mode, inside)

    def drop_in(self, name: str, text: str) -> None:
        """Settings of the unit on top of the shipped ones, until `reset`."""
        self.write(f"{DROP_INS}/{name}.conf", text)
        self.machine.run("systemctl", "daemon-reload")

    # -- systemd -------------------------------------------------------------------------------------------------

    def systemctl(self, *arguments: str, check: bool = True, timeout_s: float = WAIT_S) -> str:
        return self.machine.run("systemctl", *arguments, check=check, timeout_s=timeout_s)

    def show(self, name: str, unit: str = UNIT) -> str:
        """One property, as systemd has it."""
        return self.systemctl("show", unit, "--value", f"--property={name}").strip()

    def await_unit(self, name: str, wanted: str | Callable[[str], bool]) -> str:
        """Wait until a property is as wanted. Raises MachineError with the journal."""
        end = time.monotonic() + WAIT_S
        value = ""
        while time.monotonic() < end:
            value = self.show(name)
            if wanted(value) if callable(wanted) else value == wanted:
                return value
            time.sleep(0.05)
        raise MachineError(f"{name} is {value!r} after {WAIT_S:g} s\n{self.journal()}")

    def reset(self) -> None:
        """Stopped, without drop-ins, without a memory of failures."""
        self.systemctl("stop", UNIT, check=False)
        self.systemctl("reset-failed", UNIT, check=False)
        if self.machine.path(DROP_INS).exists():
            self.machine.run("rm", "-r", str(DROP_INS))
            self.systemctl("daemon-reload")

    def begin_journal(self) -> None:
        """What was said until now is not shown any more."""
        self.machine.run("journalctl", "--sync")
        said = self.machine.run("journalctl", "-n", "0", "--show-cursor")
        self._since = said.rpartition("-- cursor: ")[2].strip()

    def journal(self) -> str:
        """What the unit, and systemd about it, said since `begin_journal`."""
        self.machine.run("journalctl", "--sync")
        return self.machine.run("journalctl", "-u", UNIT, "-o", "short-monotonic", f"--after-cursor={self._since}")

    @property
    def main_pid(self) -> int:
        """Process id of main inside; 0 when it does not run."""
        return int(self.show("MainPID"))

    def kill_main(self, signal_name: str = "KILL") -> None:
        self.systemctl("kill", "--kill-whom=main", f"--signal={signal_name}", UNIT)

    def processes(self) -> dict[int, str]:
        """Everything that user orind has running inside, by pid, with its name (orind-engine)."""
        said = self.machine.run("ps", "-u", "orind", "-o", "pid=,stat=,comm=", check=False)
        found = [re.fullmatch(r" *(\d+) (\S+) +(.*)", line) for line in said.splitlines()]
        return {int(m[1]): m[3] for m in found if m is not None and not m[2].startswith("Z")}

    # -- the daemon ----------------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """Raises ControlError."""
        with ControlClient(self.machine.path(RUN_DIR) / "control", 20.0) as client:
            return client.request({"op": "status"}, 20.0)

    def wait_for(self, condition: Callable[[dict[str, Any]], Any], what: str) -> dict[str, Any]:
        """Ask for the status until `condition(status)` holds, also across restarts. Raises MachineError."""
        end = time.monotonic() + WAIT_S
        status: dict[str, Any] = {}
        while time.monotonic() < end:
            try:
                status = self.status()
            except ControlError:
                status = {}
            if status and condition(status):
                return status
            time.sleep(0.02)
        raise MachineError(f"no {what} within {WAIT_S:g} s; the last status: {status}\n{self.journal()}")

    def serving(self) -> dict[str, Any]:
        return self.wait_for(lambda s: s["state"] == "serving", "state serving")

    def client(self, camera: str = "line1", **options: Any) -> Publisher:
        return Publisher(self.endpoint, camera, **options)
