"""Facts of a module, as read from configs/boards/*.yaml by the daemon and handed over as a plain mapping.

Used by sensors.py, actuators.py, governor.py and policy.py. Invariant: a fact is either in the file with its source
or absent; clock tables are never facts, they are read from the board (Orin's tables depend on device tree and
bootloader).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .fields import Fields
from .model import PowerModel


@dataclass(frozen=True, slots=True)
class Zone:
    """A thermal zone: our `name`, the `types` it goes by (JetPack 6 and 5), and whether it may be unreadable: "never",
    "idle" (rail-gated with its block, so unreadable only while nothing runs) or "any" (a block we do not use)."""

    name: str
    types: tuple[str, ...]
    sleeps: str


@dataclass(frozen=True, slots=True)
class Mode:
    """A power mode of nvpmodel: caps, not watts. None means uncapped."""

    id: int
    name: str
    cpus: int
    cpu_max_khz: int | None
    gpu_max_hz: int | None
    emc_max_hz: int | None
    tpc_pg_mask: int


@dataclass(frozen=True, slots=True)
class BoardFacts:
    """One module. Powers in mW, temperatures in milli-degrees C, times in ns."""

    name: str
    title: str
    compatible: tuple[str, ...]
    rails: tuple[str, ...]
    total: tuple[str, ...]
    rail_max_mw: int
    zones: tuple[Zone, ...]
    gpu_nodes: tuple[str, ...]
    modes: tuple[Mode, ...]
    module_max_mw: int
    throttle_mc: int
    hardware_throttle_mc: int
    shutdown_mc: int
    sensor_window_ns: int
    model: PowerModel

    @classmethod
    def from_dict(cls, source: object) -> BoardFacts:
        """Check everything and build; raises SettingsError with all problems and their key paths."""
        f = Fields(source, "board facts")
        f.leave("compute")                # the time model's, checked by kernels/perf
        zones = tuple(_read_zone(z) for z in f.children("zones"))
        modes = tuple(_read_mode(m) for m in f.children("modes"))
        facts = cls(
            name=f.text("name"),
            title=f.text("title"),
            compatible=f.texts("compatible"),
            rails=f.texts("rails"),
            total=f.texts("total"),
            rail_max_mw=f.whole("rail_max_mw", 1_000, 500_000),
            zones=zones,
            gpu_nodes=f.texts("gpu_nodes"),
            modes=modes,
            module_max_mw=f.whole("module_max_mw", 1_000, 200_000),
            throttle_mc=f.whole("throttle_c", 50, 130) * 1000,
            hardware_throttle_mc=f.whole("hardware_throttle_c", 50, 130) * 1000,
            shutdown_mc=int(f.number("shutdown_c", 50, 130) * 1000),
            sensor_window_ns=f.whole("sensor_window_ms", 1, 5_000) * 1_000_000,
            model=PowerModel.from_fields(f.child("model")),
        )
        for label in facts.total:
            if label not in facts.rails:
                f.complain("total", f"names rail {label!r}, which is not in rails ({', '.join(facts.rails)})")
        names = [zone.name for zone in zones]
        for needed in ("tj", "gpu"):
            if zones and needed not in names:
                f.complain("zones", f"must have a zone named {needed!r}")
        if len(set(names)) != len(names):
            f.complain("zones", "names a zone twice")
        if len({mode.id for mode in modes}) != len(modes) or len({mode.name for mode in modes}) != len(modes):
            f.complain("modes", "has an id or a name twice")
        if not facts.throttle_mc <= facts.hardware_throttle_mc <= facts.shutdown_mc:
            f.complain("throttle_c", "must not lie above hardware_throttle_c, nor that above shutdown_c")
        f.finish()
        return facts

    def mode(self, wanted: int | str) -> Mode | None:
        """The mode with nvpmodel's id or name, or None: a configuration that we have not seen."""
        return next((mode for mode in self.modes if wanted in (mode.id, mode.name)), None)

    def board_mw(self, rails_mw: Mapping[str, int]) -> int | None:
        """The board as a whole: its `total` rails together; None where one of them is not known."""
        found = [rails_mw[label] for label in self.total if label in rails_mw]
        return sum(found) if len(found) == len(self.total) else None

    def matches(self, compatible: Sequence[str]) -> bool:
        """Whether a device tree's `compatible` list (sysfs.read_compatible) is this module's."""
        return any(name in self.compatible for name in compatible)


def _read_zone(f: Fields) -> Zone:
    zone = Zone(f.text("name"), f.texts("types"), f.text("sleeps", "never"))
    if zone.sleeps not in ("never", "idle", "any"):
        f.complain("sleeps", f"must be never, idle or any, not {zone.sleeps!r}")
    f.finish()
    return zone


def _read_mode(f: Fields) -> Mode:
    mode = Mode(
        id=f.whole("id", 0, 255),
        name=f.text("name"),
        cpus=f.whole("cpus", 1, 64),
        cpu_max_khz=f.maybe_whole("cpu_max_khz", 100_000, 4_000_000),
        gpu_max_hz=f.maybe_whole("gpu_max_hz", 100_000_000, 3_000_000_000),
        emc_max_hz=f.maybe_whole("emc_max_hz", 100_000_000, 6_000_000_000),
        tpc_pg_mask=f.whole("tpc_pg_mask", 0, 0xFFFF),
    )
    f.finish()
    return mode
