"""The unit's settings that matter, each for the reason given in facts that were measured; parsed, not grepped."""

from __future__ import annotations

from pathlib import Path

import pytest

from orind.daemon.power_helper import SOCKET
from orind.ipc.control import CLIENTS_MAX
from orind.ipc.gate import BACKLOG
from orind.power import fan_profile, mode_switch

SYSTEMD = Path(__file__).parents[2] / "systemd"


def _parse(path: Path) -> dict[str, list[str]]:
    settings: dict[str, list[str]] = {}
    for line in path.read_text().splitlines():
        if line and not line.startswith(("#", "[")):
            key, value = line.split("=", 1)
            settings.setdefault(key, []).append(value)
    return settings


@pytest.fixture(scope="module")
def unit() -> dict[str, list[str]]:
    return _parse(SYSTEMD / "orind.service")


@pytest.mark.parametrize(("key", "value"), [
    ("Type", "notify"), ("NotifyAccess", "main"), ("KillMode", "mixed"), ("OOMPolicy", "continue"), ("LimitCORE", "1"),
    ("LimitMEMLOCK", "infinity"), ("Restart", "on-failure"), ("User", "orind"), ("UMask", "0007"),
    ("ExecStartPre", "/opt/orind/bin/orind doctor"),
    ("ExecStart", "/opt/orind/bin/orind serve /etc/orind/orind.yaml"),
    ("ExecReload", "/opt/orind/bin/orind reload --wait"),
    ("ExecStopPost", "/opt/orind/bin/orind power restore"),
    ("RuntimeDirectory", "orind"), ("NoNewPrivileges", "yes"), ("ProtectSystem", "strict"),
    ("ProtectKernelTunables", "yes"), ("CapabilityBoundingSet", ""),
])
def test_setting(unit: dict[str, list[str]], key: str, value: str) -> None:
    assert unit[key] == [value]


@pytest.mark.parametrize("key", ["PrivateDevices", "ProtectClock", "DevicePolicy", "PrivateTmp", "ProcSubset",
                                 "MemoryDenyWriteExecute", "RestrictRealtime", "PrivateNetwork"])
def test_setting_that_would_break_the_daemon_is_absent(unit: dict[str, list[str]], key: str) -> None:
    assert key not in unit


def test_the_watchdog_leaves_room(unit: dict[str, list[str]]) -> None:
    assert 5 <= int(unit["WatchdogSec"][0]) <= 30


def test_clocks_are_writable_and_missing_paths_forgiven(unit: dict[str, list[str]]) -> None:
    paths = unit["ReadWritePaths"][0].split()
    assert all(path.startswith("-/sys/devices/") for path in paths)
    gpu = "/sys/devices/platform/bus@0/17000000.gpu/devfreq/17000000.gpu/max_freq"
    cpu = "/sys/devices/system/cpu/cpufreq/policy0/scaling_max_freq"
    assert all(any(file.startswith(path[1:] + "/") for path in paths) for file in (gpu, cpu))


def test_bad_configuration_is_not_retried(unit: dict[str, list[str]]) -> None:
    assert unit["RestartPreventExitStatus"][0].split() == ["2", "66", "69", "78"]


def test_no_setting_is_given_twice(unit: dict[str, list[str]]) -> None:
    assert [key for key, values in unit.items() if len(values) > 1] == []


def test_reload_drop_in() -> None:
    drop_in = _parse(SYSTEMD / "orind.service.d" / "notify-reload.conf")
    assert drop_in == {"Type": ["notify-reload"], "ReloadSignal": ["SIGUSR2"], "ExecReload": [""]}


def test_udev_rule_opens_caps_and_nothing_else() -> None:
    rules = [line for line in (SYSTEMD / "70-orind.rules").read_text().splitlines() if "RUN+=" in line]
    files = {word.rsplit("/", 1)[1].rstrip('",') for rule in rules for word in rule.split() if "/sys%p" in word}
    assert files == {"max_freq", "min_freq", "scaling_max_freq"}
    assert all("g+w" in rule and "chgrp orind" in rule and "o+w" not in rule for rule in rules)
    assert "17000000.gpu|17000000.ga10b" in rules[0]


def test_the_socket_unit_fits_the_service(unit: dict[str, list[str]]) -> None:
    socket = _parse(SYSTEMD / "orind.socket")
    assert socket["Service"] == ["orind.service"] and socket["FileDescriptorName"] == ["frames"]
    assert socket["Backlog"] == [str(BACKLOG)], "as many as descriptors are kept free for"
    assert socket["ListenStream"] == ["/run/orind/frames"] and unit["RuntimeDirectory"] == ["orind"]
    assert unit["RuntimeDirectoryPreserve"] == ["yes"], "a stop must not remove the path that systemd listens on"


def test_the_power_helper_is_root_without_capabilities_and_its_socket_the_group_s() -> None:
    helper, socket = _parse(SYSTEMD / "orind-power.service"), _parse(SYSTEMD / "orind-power.socket")
    assert helper["ExecStart"] == ["/opt/orind/bin/python -I -m orind.daemon.power_helper"]
    assert helper["CapabilityBoundingSet"] == helper["AmbientCapabilities"] == [""]
    assert helper["ProtectSystem"] == ["strict"] and helper["NoNewPrivileges"] == helper["PrivateNetwork"] == ["yes"]
    assert all(path.startswith("-/") for path in helper["ReadWritePaths"][0].split())
    assert not {"ProtectKernelTunables", "PrivateDevices", "ProtectClock"} & set(helper), "nvpmodel writes /sys"
    assert socket["ListenSequentialPacket"] == [str(SOCKET)] and "/run/orind/" not in str(SOCKET)
    assert (socket["SocketUser"], socket["SocketGroup"], socket["SocketMode"]) == (["root"], ["orind"], ["0660"])
    assert socket["Backlog"] == [str(CLIENTS_MAX)]


def test_a_stop_of_the_power_helper_waits_for_what_is_under_way() -> None:
    stop_s = int(_parse(SYSTEMD / "orind-power.service")["TimeoutStopSec"][0])
    restart_s = 3 * fan_profile.TIMEOUT_S + fan_profile.QUERY_S  # stop, start, reset-failed, start
    looks_s = 3 * fan_profile.QUERY_S + fan_profile.SETTLED_S  # -q and is-active before, -q after
    assert stop_s >= 2 * restart_s + looks_s + 10, "there and back, on a board that is busy"
    assert stop_s >= mode_switch.TIMEOUT_S + mode_switch.GOVERNED_S + 10
