"""Every field that jtop shows beside what orind reads of the same board: a table, and what of jtop is left.

Used by test_jtop.py. jtop's sample is flattened to `power.rail.VDD_IN.volt`; each row takes one field out, so that a
field of jtop that nobody thought of is left over and seen. What orind's own readers do not read is read here through
its door to the board's files (Sysfs), or stands in NOT_COMPARED with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orind.power import fan_profile
from orind.power.board import BoardFacts
from orind.power.nvpmodel import read_board, switch_to
from orind.power.plant.modules import JetPack, Module
from orind.power.sensors import Sensors
from orind.power.sysfs import CPUFREQ, Sysfs

CPU = "sys/devices/system/cpu"
EMC = "sys/kernel/debug/bpmp/debug/clk/emc"
OFFLINE = -256  # what jtop shows for a temperature that it cannot read

NOT_COMPARED = {
    r"board\.hardware\.Module": "jtop asks the module's EEPROM over I2C, which files do not have",
    r"board\.hardware\.(Jetpack|CUDA Arch BIN)": "jtop looks it up in a table of its own by L4T release or chip",
    r"board\.cpu\..*|cpu\.cpu\.\d+\.model": "what kind of CPU it is; orind does not ask",
    r"cpu\.(total|cpu\.\d+)\.(user|nice|system|idle)": "from /proc/stat, which orind does not read (tested apart)",
    r"mem\.(RAM|SWAP)\..*": "memory of the machine; orind does not read it",
    r"power\..*\.(avg|type)": "jtop's own smoothing over its samples, and a name",
    r"power\.rail\..*\.online|power\.tot\.online": "always true for an INA3221",
    r"mem\.EMC\.online|gpu\.\w+\.type": "always the same on an Orin",
    r"jc\.(thread|config|boot)|nvp\.thread": "jtop's own state",
    r"fan\.pwmfan\.(governor|control)": "settings of nvfancontrol besides the profile; orind does not use them",
    r"engines|processes": "empty: the simulated board has no video engines and no GPU process",
    r"uptime|stats\..*": "time, and jtop's summary of the fields above",
}


@dataclass(frozen=True, slots=True)
class Row:
    """One field; both values as a person would read them, in the same unit."""

    field: str
    jtop: object
    orind: object

    @property
    def same(self) -> bool:
        return self.jtop == self.orind


@dataclass
class Comparison:
    """`rows`, what of jtop is `left` (field -> value), and which reasons of NOT_COMPARED were `used`."""

    rows: list[Row] = field(default_factory=list)
    left: dict[str, object] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)

    def table(self) -> str:
        """Markdown; CPUs with the same values share a line."""
        merged: dict[tuple[str, str, str], list[str]] = {}
        for row in self.rows:
            cpu = re.match(r"CPU (\d+): ", row.field)
            name = row.field[cpu.end():] if cpu else row.field
            merged.setdefault((name, _text(row.jtop), _text(row.orind)), []).append(cpu[1] if cpu else "")
        lines = ["| field | jtop | orind |", "| --- | --- | --- |"]
        for (name, jtop, orind), cpus in merged.items():
            who = f"CPU {cpus[0]}{f' to {cpus[-1]}' if len(cpus) > 1 else ''}: " if cpus[0] else ""
            lines.append(f"| {who}{name} | {jtop} | {orind} |")
        return "\n".join(lines)


def _text(value: object) -> str:
    return f"{value:.3f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def flatten(value: Any, name: str = "") -> Iterator[tuple[str, object]]:
    """Leaves of nested mappings and lists; an empty one is a leaf."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    if not inner or not value:
        yield name, value
    else:
        for key, item in inner:
            yield from flatten(item, f"{name}.{key}" if name else str(key))


def compare(sample: dict[str, Any], root: Path, facts: BoardFacts, module: Module, jetpack: JetPack) -> Comparison:
    """`sample`: what jtop shows; `root`: the tree that both look at."""
    left = dict(flatten(sample))
    found = Comparison()
    for name, orind in _fields(Sysfs(root), facts, module, jetpack, sample):
        label, _, jtop_name = name.rpartition(" = ")
        found.rows.append(Row(label, left.pop(jtop_name, "not shown"), orind))
    for name in [*left]:
        for pattern in NOT_COMPARED:
            if re.fullmatch(pattern, name):
                found.used.add(pattern)
                left.pop(name, None)
    found.left = left
    return found


def _fields(sysfs: Sysfs, facts: BoardFacts, module: Module, jetpack: JetPack,
            sample: dict[str, Any]) -> Iterator[tuple[str, object]]:
    """("what it is = jtop's name", what orind reads)."""
    seen = Sensors(sysfs.root, facts).read()
    assert seen.faults == ()
    yield "board = board.hardware.Model", sysfs.read_model()
    yield "SoC = board.hardware.SoC", sysfs.read_compatible()[-1].partition(",")[2]
    yield "serial number = board.hardware.Serial Number", sysfs.read_text("sys/firmware/devicetree/base/serial-number")
    yield "L4T release = board.hardware.L4T", sysfs.read_release()
    yield from _rails(sysfs, facts, seen.rails_mw, seen.board_mw)
    yield from _temperatures(sysfs, facts, module, jetpack, seen.zones_mc)
    yield from _gpu(sysfs, facts, seen.gpu_busy_permille, jetpack.node)
    yield from _cpus(sysfs, module)
    hz, percent = sysfs.read_emc()
    yield "EMC clock, kHz = mem.EMC.cur", hz // 1000
    yield "EMC busy, % = mem.EMC.val", percent
    # jtop obeys the memory's cap where JetPack 5 has it, and does not know that of JetPack 6
    top, cap = sysfs.read_int(f"{EMC}/max_rate"), sysfs.read_int(jetpack.emc_cap) if jetpack.name == "5" else 0
    yield "EMC highest, kHz = mem.EMC.max", min(top, cap or top) // 1000
    yield "EMC lowest, kHz = mem.EMC.min", sysfs.read_int(f"{EMC}/min_rate") // 1000
    yield "EMC clock held, kHz = mem.EMC.override", sysfs.read_int(f"{EMC}/mrq_rate_locked") // 1000
    assert seen.fan_pwm is not None
    fan, tach = sysfs.find_hwmon("pwmfan"), sysfs.find_hwmon("pwm_tach")
    yield "fan, % of 255 = fan.pwmfan.speed.0", seen.fan_pwm * 100 / 255
    yield "fan, rpm = fan.pwmfan.rpm.0", sysfs.read_int(f"{tach}/rpm")
    yield "fan PWM enabled = fan.pwmfan.pwm_enable.0", sysfs.read_int(f"{fan}/pwm1_enable")
    yield "fan profile = fan.pwmfan.profile", fan_profile.active(sysfs)
    for number, name in enumerate([*fan_profile.profiles(sysfs), "manual"]):  # "manual" is jtop's own
        yield f"fan profile {number} = profiles.pwmfan.{number}", name
    yield from _modes(sysfs)
    yield "jetson_clocks = jc.enable", _pinned(sysfs, facts)


def _rails(sysfs: Sysfs, facts: BoardFacts, rails_mw: Any, board_mw: int | None) -> Iterator[tuple[str, object]]:
    for label, (volts, amps) in sysfs.find_rails().items():
        whole = len(facts.total) == 1 and label in facts.total  # jtop shows that rail as the total, and only so
        at = "power.tot" if whole else f"power.rail.{label}"
        if whole:
            yield f"{label}, name = {at}.name", label
        yield f"{label}, mV = {at}.volt", sysfs.read_int(volts)
        yield f"{label}, mA = {at}.curr", sysfs.read_int(amps)
        yield f"{label}, mW = {at}.power", rails_mw[label]
        limits = amps.removesuffix("_input")
        yield f"{label}, warning at mA = {at}.warn", sysfs.read_int(f"{limits}_max")
        yield f"{label}, critical at mA = {at}.crit", sysfs.read_int(f"{limits}_crit")
    if len(facts.total) > 1:
        yield "total, mW = power.tot.power", board_mw


def _temperatures(sysfs: Sysfs, facts: BoardFacts, module: Module, jetpack: JetPack,
                  zones_mc: Any) -> Iterator[tuple[str, object]]:
    for kind in jetpack.zone_types(module):
        zone = next((zone.name for zone in facts.zones if kind in zone.types), None)
        shown = re.split("[-_]", kind)[0]
        # the developer kit's own sensors on JetPack 5 are no zones of the module
        value = sysfs.read_int(f"{sysfs.find_zones()[kind]}/temp") if zone is None else zones_mc.get(zone)
        yield f"zone {kind}, C = temperature.{shown}.temp", OFFLINE if value is None else value / 1000
        yield f"zone {kind} readable = temperature.{shown}.online", value is not None


def _gpu(sysfs: Sysfs, facts: BoardFacts, permille: int | None, node: str) -> Iterator[tuple[str, object]]:
    devfreq = sysfs.find_devfreq(facts.gpu_nodes)
    assert devfreq is not None and permille is not None
    for what, name in (("clock", "cur"), ("cap", "max"), ("lowest", "min")):
        yield f"GPU {what}, kHz = gpu.{node}.freq.{name}", sysfs.read_int(f"{devfreq}/{name}_freq") // 1000
    yield f"GPU governor = gpu.{node}.freq.governor", sysfs.read_text(f"{devfreq}/governor")
    yield f"GPU load, % = gpu.{node}.status.load", permille / 10
    yield f"GPU rail gating = gpu.{node}.status.railgate", sysfs.read_int(f"{devfreq}/device/railgate_enable") == 1
    # jtop shows whether the mask is 1, not the mask
    yield f"GPU TPC mask is 1 = gpu.{node}.status.tpc_pg_mask", sysfs.read_int(f"{devfreq}/device/tpc_pg_mask") == 1
    yield f"GPU 3D scaling = gpu.{node}.status.3d_scaling", sysfs.read_int(f"{devfreq}/device/enable_3d_scaling") == 1
    yield f"GPU power control = gpu.{node}.power_control", sysfs.read_text(f"{devfreq}/device/power/control")


def _cpus(sysfs: Sysfs, module: Module) -> Iterator[tuple[str, object]]:
    online = sysfs.read_online()
    for cpu in range(module.cpus):
        at = f"cpu.cpu.{cpu}"
        yield f"CPU {cpu}: online = {at}.online", cpu in online
        if cpu not in online:
            continue
        policy = f"{CPUFREQ}/policy{cpu // 4 * 4}"
        yield f"CPU {cpu}: governor = {at}.governor", sysfs.read_text(f"{policy}/scaling_governor")
        for what, name in (("clock", "cur"), ("cap", "max"), ("lowest", "min")):
            yield f"CPU {cpu}: {what}, kHz = {at}.freq.{name}", sysfs.read_int(f"{policy}/scaling_{name}_freq")
        for what, name in (("highest", "max"), ("lowest of the table", "min")):
            yield f"CPU {cpu}: {what}, kHz = {at}.info_freq.{name}", sysfs.read_int(f"{policy}/cpuinfo_{name}_freq")


def _modes(sysfs: Sysfs) -> Iterator[tuple[str, object]]:
    conf, active, live = read_board(sysfs)
    default, now = conf.mode(conf.default), None if active is None else conf.mode(active)
    assert default is not None and now is not None
    yield "mode = nvp.model.name", now.name
    yield "mode, id = nvp.model.id", now.id
    yield "default mode = modes.default.name", default.name
    yield "default mode, id = modes.default.id", default.id
    for number, mode in enumerate(conf.modes):
        yield f"mode {number} = modes.models.{number}", mode.name
        yield f"mode {number} needs no boot = nvp.status.{number}", switch_to(mode, active, live).kind != "reboot"


def _pinned(sysfs: Sysfs, facts: BoardFacts) -> bool:
    """What jetson_clocks does: lowest and highest clock are the same, of the GPU and of every CPU that is online."""
    gpu = sysfs.find_devfreq(facts.gpu_nodes)
    clocks = {f"{gpu}/{{}}_freq", *(f"{CPUFREQ}/policy{cpu // 4 * 4}/scaling_{{}}_freq" for cpu in sysfs.read_online())}
    return all(sysfs.read_int(clock.format("min")) == sysfs.read_int(clock.format("max")) for clock in clocks)
