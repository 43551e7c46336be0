"""Reads nvpmodel.conf: the modes of a board, what each caps, and which switch to one needs a reboot.

Used by `orind power`, mode_switch.py and envelope.py. Grammar: the header of NVIDIA's own files; its oddities:
`<PARAM` without a blank, gaps between ids, `*_KNEXT` arguments (the same file's path under a newer kernel), a
FAN_CONFIG section, EMC as FILE or CLOCK with 0 as well as -1 for "no cap". Invariants: a file is taken whole or refused
with every mistake and its line; modes are caps, never watts, and their ids say nothing about their order.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from .errors import ConfError, SysfsError
from .sysfs import Sysfs

CONF, STATUS = "etc/nvpmodel.conf", "var/lib/nvpmodel/status"
BYTES_MAX = 65_535  # one less than Sysfs reads; NVIDIA's files have about 12,000
ID_MAX = 9_999  # the status file has four digits
_NAME = re.compile(r"[A-Za-z0-9_.+-]{1,64}")
_KEYS = {"PARAM": {"TYPE", "NAME"}, "POWER_MODEL": {"ID", "NAME"}, "PM_CONFIG": {"DEFAULT"}, "FAN_CONFIG": {"DEFAULT"}}
_TPC, _FBP = ("TPC_POWER_GATING", "TPC_PG_MASK"), ("FBP_POWER_GATING", "FBP_PG_MASK")


@dataclass(frozen=True, slots=True)
class ConfMode:
    """A mode of the file. None: the mode leaves that as it is (masks), or free (clocks). `cpus`: numbers of the cores
    that are online in it; clocks of the slowest cluster."""

    id: int
    name: str
    cpus: tuple[int, ...]
    cpu_max_khz: int | None
    gpu_max_hz: int | None
    emc_max_hz: int | None
    tpc_pg_mask: int | None
    fbp_pg_mask: int | None


@dataclass(frozen=True, slots=True)
class Masks:
    """The GPU's power-gating masks that are live now; None where the board has no such file, or it cannot be read."""

    tpc_pg_mask: int | None
    fbp_pg_mask: int | None


@dataclass(frozen=True, slots=True)
class Switch:
    """What going to a mode takes: "active" (nothing), "live", "reboot", or "unknown"; `reason` in words."""

    kind: str
    reason: str


@dataclass(frozen=True, slots=True)
class Conf:
    """A whole file. `default`: what the board boots into while its status file is absent. `paths`: (PARAM, ARG) ->
    absolute path on the board; `settings`: id -> (PARAM, ARG) -> what the mode writes there."""

    modes: tuple[ConfMode, ...]
    default: int
    paths: Mapping[tuple[str, str], str]
    settings: Mapping[int, Mapping[tuple[str, str], str]]

    def mode(self, wanted: int | str) -> ConfMode | None:
        """The mode of an id or a name; names are taken as they are written."""
        return next((m for m in self.modes if wanted in (m.id, m.name)), None)

    def read_masks(self, sysfs: Sysfs) -> Masks:
        """The masks that are live, from the paths that the file names."""
        tpc, fbp = self.read(sysfs, _TPC), self.read(sysfs, _FBP)
        return Masks(tpc[0] if tpc else None, fbp[0] if fbp else None)

    def read(self, sysfs: Sysfs, key: tuple[str, str]) -> tuple[int, ...]:
        """The numbers in the file of (PARAM, ARG), under either kernel's path; none where neither can be read."""
        for path in (self.paths.get(key), self.paths.get((key[0], f"{key[1]}_KNEXT"))):
            if path is not None:
                try:
                    return sysfs.read_ints(path.lstrip("/"))
                except SysfsError:
                    continue  # the other kernel's path
        return ()


def read_mode_id(sysfs: Sysfs) -> int | None:
    """The id in the status file ("pmode:0002 fmode:quiet"), None where there is none."""
    try:
        found = re.search(r"(?:^|\s)pmode:([0-9]{1,4})(?:\s|$)", sysfs.read_text(STATUS))
    except SysfsError:
        return None
    return int(found[1]) if found else None


def switch_to(mode: ConfMode, active: int | None, live: Masks) -> Switch:
    """Whether `mode` can be entered now. A mask other than the live one needs a reboot: the GPU's golden context was
    made with the old one, and nvpmodel then asks for a reboot instead of switching."""
    differ, unknown = [], []
    for what, now, then in (("TPC", live.tpc_pg_mask, mode.tpc_pg_mask), ("FBP", live.fbp_pg_mask, mode.fbp_pg_mask)):
        if then is not None and now is None:
            unknown.append(what)
        elif then is not None and now != then:
            differ.append(f"{what} mask {now} -> {then}")
    if differ:
        return Switch("reboot", ", ".join(differ))
    if unknown:
        return Switch("unknown", f"the live {' and '.join(unknown)} mask cannot be read")
    return Switch("active", "") if mode.id == active else Switch("live", "")


def read_conf(sysfs: Sysfs) -> Conf:
    """The board's file. Raises SysfsError where it cannot be read, ConfError for what is wrong in it."""
    data = sysfs.read_bytes(CONF)
    if len(data) > BYTES_MAX:
        raise ConfError(f"{sysfs.root / CONF}", ((0, f"has more than {BYTES_MAX} bytes, which no nvpmodel.conf has"),))
    return parse(data.decode("utf-8", "replace"), sysfs.root / CONF)


def read_board(sysfs: Sysfs) -> tuple[Conf, int | None, Masks]:
    """The file, the id of the active mode (None: nvpmodel has not run) and the live masks."""
    conf = read_conf(sysfs)
    return conf, read_mode_id(sysfs), conf.read_masks(sysfs)


def parse(text: str, file: Path) -> Conf:
    """Raises ConfError with every mistake and its line; `file` is for its text only."""
    reader = _Reader()
    for number, raw in enumerate(text.split("\n"), 1):
        line = raw.strip()
        if line and not line.startswith("#"):
            reader.read(number, line)
    conf = reader.finish()
    if conf is None:
        raise ConfError(str(file), tuple(sorted(reader.problems)))
    return conf


@dataclass(slots=True)
class _Draft:
    """A POWER_MODEL while it is being read: (PARAM, ARG) -> (value, line)."""

    id: int
    name: str
    line: int
    values: dict[tuple[str, str], tuple[str, int]] = field(default_factory=dict)


class _Reader:
    """One pass over the lines. `problems` grows; after a section's header was refused its lines are passed over."""

    def __init__(self) -> None:
        self.problems: list[tuple[int, str]] = []  # line (0: the whole file), what
        self._types: dict[str, str] = {}
        self._paths: dict[tuple[str, str], str] = {}
        self._modes: list[_Draft] = []
        self._default: tuple[int, int] | None = None  # id, line
        self._section: str | _Draft | None = None  # a PARAM's name, a mode, or neither
        self._passing = False

    def read(self, number: int, line: str) -> None:
        """A line that is neither empty nor a comment."""
        if line.startswith("<"):
            self._section, self._passing = None, False
            self._passing = not self._header(number, line)
        elif not self._passing:
            self._body(number, line.split())

    def finish(self) -> Conf | None:
        """The file, or None with `problems`."""
        ids = {mode.id for mode in self._modes}
        if self._default is None:
            self._wrong(0, "has no line < PM_CONFIG DEFAULT=ID >, which nvpmodel demands")
        elif self._default[0] not in ids:
            self._wrong(self._default[1], f"DEFAULT={self._default[0]} is no mode of this file")
        if not self._modes:
            self._wrong(0, "has no POWER_MODEL")
        modes = tuple(self._mode(draft) for draft in self._modes)
        if self.problems or self._default is None:
            return None
        settings = {m.id: {key: value for key, (value, _) in m.values.items()} for m in self._modes}
        return Conf(modes, self._default[0], self._paths, settings)

    def _wrong(self, number: int, text: str) -> bool:
        self.problems.append((number, text))
        return False

    def _header(self, number: int, line: str) -> bool:
        words = line[1:-1].split()
        if not line.endswith(">") or not words:
            return self._wrong(number, f"{line[:60]!r} opens a section but does not end with '>'")
        kind, keys = words[0], dict(word.partition("=")[::2] for word in words[1:])
        if kind not in _KEYS:
            return self._wrong(number, f"unknown section {kind[:40]!r} (known: {', '.join(_KEYS)})")
        if set(keys) != _KEYS[kind] or len(words) != len(_KEYS[kind]) + 1:
            return self._wrong(number, f"{kind} takes {' and '.join(f'{k}=' for k in sorted(_KEYS[kind]))}")
        if bad := next((value for value in keys.values() if not _NAME.fullmatch(value)), None):
            return self._wrong(number, f"{bad[:40]!r} is no name: letters, digits and _ . + -, at most 64")
        if "" in keys.values():
            return self._wrong(number, f"{kind}: a value is empty")
        if kind == "PARAM":
            return self._param(number, keys["TYPE"], keys["NAME"])
        if kind == "FAN_CONFIG":
            return True
        number_text = keys["ID" if kind == "POWER_MODEL" else "DEFAULT"]
        if not number_text.isdecimal() or int(number_text) > ID_MAX:
            return self._wrong(number, f"{number_text[:40]!r} is no id: a whole number from 0 to {ID_MAX}")
        if kind == "POWER_MODEL":
            return self._power_model(_Draft(int(number_text), keys["NAME"], number))
        if self._default is not None:
            return self._wrong(number, f"a second PM_CONFIG; the first is in line {self._default[1]}")
        self._default = (int(number_text), number)
        return True

    def _param(self, number: int, kind: str, name: str) -> bool:
        if kind not in ("FILE", "CLOCK"):
            return self._wrong(number, f"PARAM {name}: TYPE is FILE or CLOCK, not {kind}")
        if name in self._types:
            return self._wrong(number, f"PARAM {name} is there twice")
        self._types[name] = kind
        self._section = name
        return True

    def _power_model(self, draft: _Draft) -> bool:
        for other in self._modes:
            if other.id == draft.id or other.name == draft.name:
                what = f"ID={draft.id}" if other.id == draft.id else f"NAME={draft.name}"
                return self._wrong(draft.line, f"POWER_MODEL {what} is there twice; the first is in line {other.line}")
        self._modes.append(draft)
        self._section = draft
        return True

    def _body(self, number: int, words: list[str]) -> None:
        if self._section is None:
            self._wrong(number, f"{' '.join(words)[:60]!r} stands in no PARAM and no POWER_MODEL")
        elif isinstance(self._section, str):
            if len(words) != 2 or not words[1].startswith("/") or ".." in words[1].split("/"):
                self._wrong(number, f"PARAM {self._section} takes lines ARG /PATH, not {' '.join(words)[:60]!r}")
            elif (self._section, words[0]) in self._paths:
                self._wrong(number, f"PARAM {self._section}: {words[0][:40]!r} is there twice")
            else:
                self._paths[self._section, words[0]] = words[1]
        else:
            self._setting(number, self._section, words)

    def _setting(self, number: int, draft: _Draft, words: list[str]) -> None:
        if len(words) != 3:
            self._wrong(number, f"a mode takes lines PARAM ARG VALUE, not {' '.join(words)[:60]!r}")
            return
        param, arg, value = words
        if (param, arg) not in self._paths:
            self._wrong(number, f"no PARAM above has {param[:40]} {arg[:40]!r}")
        elif (param, arg) in draft.values:
            self._wrong(number, f"{param} {arg} is there twice; the first is in line {draft.values[param, arg][1]}")
        elif self._types[param] == "CLOCK" and (not re.fullmatch(r"-1|[0-9]{1,12}", value)):
            self._wrong(number, f"{param} {arg}: a clock is a whole number or -1 (no cap), not {value[:40]!r}")
        else:
            draft.values[param, arg] = (value, number)

    def _mode(self, draft: _Draft) -> ConfMode:
        cpus = []
        for (param, arg), (value, line) in draft.values.items():
            if param == "CPU_ONLINE":
                core = re.fullmatch(r"CORE_([0-9]{1,3})", arg)
                if core is None or value not in ("0", "1"):
                    self._wrong(line, f"CPU_ONLINE takes CORE_n 0 or 1, not {arg[:40]!r} {value[:40]!r}")
                elif value == "1":
                    cpus.append(int(core[1]))
        if not cpus:
            self._wrong(draft.line, f"mode {draft.name} has no CPU online")
        clusters = [self._clock(draft, key) for key in draft.values
                    if key[0].startswith("CPU_") and key[1] == "MAX_FREQ"]
        return ConfMode(draft.id, draft.name, tuple(sorted(cpus)),
                        min((khz for khz in clusters if khz is not None), default=None),
                        self._clock(draft, ("GPU", "MAX_FREQ")), self._clock(draft, ("EMC", "MAX_FREQ")),
                        self._mask(draft, _TPC), self._mask(draft, _FBP))

    def _clock(self, draft: _Draft, key: tuple[str, str]) -> int | None:
        """EMC is declared as FILE in some files, so that its value was not looked at yet."""
        value, line = draft.values.get(key, ("-1", draft.line))
        if value == "-1" or (value == "0" and key[0] == "EMC"):
            return None
        if not re.fullmatch(r"[0-9]{1,12}", value) or int(value) == 0:
            self._wrong(line, f"{key[0]} {key[1]}: a cap is a whole number above 0 or -1, not {value[:40]!r}")
            return None
        return int(value)

    def _mask(self, draft: _Draft, key: tuple[str, str]) -> int | None:
        if key not in draft.values:
            return None
        value, line = draft.values[key]
        if not re.fullmatch(r"[0-9]{1,5}", value) or int(value) > 0xFFFF:
            self._wrong(line, f"{key[0]} {key[1]}: a mask is a whole number from 0 to 65535, not {value[:40]!r}")
            return None
        return int(value)
