"""The shipped unit under a real systemd, hardening on: start, reload, stop, what it may touch."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import built_plans
import pytest
from installed import CONFIG, PLAN_DIR, UNIT, Installed
from machine import HOUSE, MachineError

OURS = ("/run/orind/", "/var/lib/orind/", "/var/cache/orind/")


def test_ready_comes_after_a_golden_answer(orind: Installed, picture: Any) -> None:
    begin = time.monotonic()
    orind.systemctl("start", UNIT)
    print(f"start to READY: {time.monotonic() - begin:.2f} s")
    status = orind.status()
    assert [e for e in status["engines"] if e["role"] == "active"], "systemctl waits until one has proven itself"
    end = time.monotonic() + 20  # log lines leave main through a thread, READY does not
    while "is active (first engine ready)" not in orind.journal():
        assert time.monotonic() < end, orind.journal()
    with orind.client() as camera:
        camera.send(picture, "rgb8")
        assert [answer.outcome for answer in camera.wait_all(20)] == ["ok"]
    assert orind.show("StatusText").startswith("serving")


def test_the_documented_steps_lead_from_the_installation_to_service(orind: Installed) -> None:
    """docs/install.md in its own order, on a machine where the service has never been started."""
    blocks = re.findall(r"^```\n(.*?)^```", (HOUSE / "docs/install.md").read_text(), re.MULTILINE | re.DOTALL)[:2]
    steps = [line.partition("#")[0].split() for block in blocks for line in block.splitlines()]
    assert [step[1] if step[0] == "sudo" else step[0] for step in steps] == [
        "apt-get", "scripts/install", "orind", "install", "install", "sudoedit", "-u", "systemctl"
    ]
    orind.machine.run("rm", "-r", PLAN_DIR, "/run/orind")
    orind.write(CONFIG, (HOUSE / "configs/orind.yaml").read_text(), "root:orind", "640")
    orind.write("/root/part-inspect.plan", "")
    orind.machine.path("/root/part-inspect.plan").write_bytes(built_plans.part_plan().read_bytes())
    for step in [*steps[3:5], *steps[6:]]:
        run_as = ["runuser", "-u", "orind", "--"] if step[1:3] == ["-u", "orind"] else []
        words = step[3:] if run_as else step[1:]
        orind.machine.run("env", "-C", "/root", *run_as, *words)
    assert list(orind.serving()["models"]) == ["parts"]
    orind.systemctl("disable", "--now", UNIT)
    orind.machine.run("rm", "-r", "/run/orind")  # the locks of this configuration's sockets


def test_without_a_golden_answer_it_never_is_ready(orind: Installed, config: dict[str, Any]) -> None:
    orind.configure({**config, "engine": {**config["engine"], "ready_timeout_s": 0.01, "restart_budget": 1}})
    orind.systemctl("start", "--no-block", UNIT)
    orind.wait_for(lambda s: s["state"] == "failed", "no engine")
    assert orind.show("ActiveState") == "activating"
    orind.systemctl("stop", UNIT)
    assert "Started orind.service" not in orind.journal()


@pytest.mark.parametrize(("setting", "code", "said"), [
    ("TimeoutStopSec=24", "78", "stop.drain_timeout_s: 20 s .* TimeoutStopSec=24 of /run/.*/short.conf"),
    ("TimeoutStartSec=119", "78", "engine.ready_timeout_s: 60 s .* TimeoutStartSec=119 of /run/.*/short.conf"),
    ("WatchdogSec=500ms", "69", "WatchdogSec is 0.5 s: .*set WatchdogSec=1 or more in the unit"),
])
def test_a_time_out_of_the_unit_that_cuts_off_ours_is_refused_with_both(
    orind: Installed, setting: str, code: str, said: str
) -> None:
    orind.drop_in("short", f"[Service]\n{setting}\n")
    with pytest.raises(MachineError, match="exited with error code"):
        orind.systemctl("start", UNIT)
    assert orind.show("ExecMainStatus") == code
    assert re.search(said, orind.journal())


def test_reload_returns_when_the_new_generation_serves(orind: Installed, config: dict[str, Any]) -> None:
    orind.systemctl("start", UNIT)
    begin = time.monotonic()
    orind.systemctl("reload", UNIT)
    print(f"reload: {(time.monotonic() - begin) * 1000:.0f} ms")
    assert orind.status()["generation"] == 2
    orind.configure({**config, "cameras": {"line1": {"model": "none", "deadline_ms": 100}}})
    if orind.show("Type") == "notify":  # from 253 on READY=1 ends a reload, and does not say whether it was refused
        with pytest.raises(MachineError, match="reload"):
            orind.systemctl("reload", UNIT)
    else:
        orind.systemctl("reload", UNIT)
    assert orind.status()["generation"] == 2
    assert (orind.show("ActiveState"), orind.show("SubState")) == ("active", "running"), "READY=1 follows a refusal too"
    assert "no model 'none'" in orind.journal()


def test_stop_answers_what_was_received(orind: Installed, picture: Any) -> None:
    orind.systemctl("start", UNIT)
    with orind.client(resend_after_s=60.0) as camera:
        for _ in range(20):
            camera.send(picture, "rgb8")
        orind.wait_for(lambda s: s["frames"]["received"] == 20, "20 frames received")
        orind.systemctl("stop", UNIT)
        answers = camera.wait_all(20)
    assert [answer.outcome for answer in answers] == ["ok"] * 20
    assert (orind.show("Result"), orind.show("ExecMainStatus")) == ("success", "0")
    assert orind.processes() == {}
    left = {p.name for p in orind.machine.path("/run/orind").iterdir()}
    assert left == {"frames.lock", "lock"}, "no socket that nobody serves"


def test_it_writes_nowhere_but_in_its_directories(orind: Installed, picture: Any) -> None:
    """Files of the overlay's upper layer and of every tmpfs, before and after a life with a frame and a reload."""
    before = written(orind)
    orind.systemctl("start", UNIT)
    with orind.client() as camera:
        camera.send(picture, "rgb8")
        camera.wait_all(20)
    orind.systemctl("reload", UNIT)
    meanwhile = written(orind)
    orind.systemctl("stop", UNIT)
    changed = {path for path, facts in {**meanwhile, **written(orind)}.items() if before.get(path) != facts}
    assert {"/run/orind/lock", "/run/orind/control"} <= changed, "what it does write must be seen"
    assert [path for path in changed if not path.startswith(OURS)] == []


def written(orind: Installed) -> dict[str, str]:
    """What was written since boot, path to size and time, without what systemd and its journal keep for themselves."""
    said = orind.machine.run(
        "find", "/run/upper", "/run/orind", "/run/lock", "/tmp", "/dev/shm", "-xdev",
        "(", "-type", "f", "-o", "-type", "s", ")", "-printf", "%p %s %T@\n", check=False,
    )
    found = dict(line.split(" ", 1) for line in said.splitlines() if line.startswith("/"))
    tidied = {path.removeprefix("/run/upper"): facts for path, facts in found.items()}
    return {p: facts for p, facts in tidied.items() if not p.startswith(("/var/lib/systemd/", "/var/log/"))}


def test_what_the_hardening_forbids_is_forbidden(orind: Installed) -> None:
    """Tried from within the unit's own sandbox, by a command in place of the doctor."""
    tries = f"""#!/bin/bash
    for place in / /etc /opt/orind /usr /root /home /sys /proc/sys; do
        if touch "$place/probe" 2>/dev/null; then echo "wrote $place"; fi
    done
    touch {PLAN_DIR}/probe /run/orind/probe && echo "wrote its own"
    grep -q '^NoNewPrivs:.*1$' /proc/self/status && grep -q '^CapBnd:.*0000000000000000$' /proc/self/status && echo bare
    cat {CONFIG} >/dev/null && echo "reads its configuration"
    """
    orind.write("/opt/orind/bin/tries", tries, mode="755")
    orind.drop_in("tries", "[Service]\nExecStartPre=\nExecStartPre=/opt/orind/bin/tries\n")
    orind.systemctl("start", UNIT)
    said = re.findall(r"tries\[\d+\]: (.*)", orind.journal())
    assert said == ["wrote its own", "bare", "reads its configuration"]


def test_security_score(orind: Installed) -> None:
    said = orind.machine.run("systemd-analyze", "security", "--no-pager", UNIT, check=False)
    verdict = re.findall(r"Overall exposure level for orind.service: ([\d.]+) (\w+)", said)
    print(f"systemd-analyze security: {verdict[0][0]} {verdict[0][1]}")
    assert float(verdict[0][0]) <= 3.0


def test_the_unit_is_the_shipped_one(orind: Installed) -> None:
    shipped = Path(__file__).resolve().parents[2] / "systemd" / "orind.service"
    assert orind.machine.path("/etc/systemd/system/orind.service").read_text() == shipped.read_text()
    assert orind.show("OOMPolicy") == "continue"
