"""What needs root on a board, as a fixed set of requests: enter a power mode, stage one that needs a reboot, choose the
fan's profile, read the memory's clock.

`Privileged.answer` is the only way to them: the helper serves it to group orind, `orind power` calls it itself as root
and on simulated boards. Invariants: a request has exactly its fields; a name must be one of the board's own file and
reaches no command line (nvpmodel gets the id); nobody names a path; what is refused says why and has changed nothing;
no signal but SIGKILL ends a request in the middle, where the fan would stand or half a mode hold.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .deferred_signals import deferred_signals
from .errors import ConfError, PowerError, SysfsError
from .fan_profile import choose, profiles
from .mode_switch import enter, stage
from .nvpmodel import Conf, ConfMode, read_conf
from .sysfs import Sysfs

REQUESTS = {"mode": ("name",), "stage": ("name",), "fan": ("profile",), "emc": ()}
_NAME = re.compile(r"[A-Za-z0-9_.+-]{1,64}")


class _Refused(Exception):
    """A request that is none, or names something that this board does not have."""


class Privileged:
    """The requests over the board below `root`. `state`: the file that is there while a daemon holds the GPU's cap."""

    def __init__(self, root: Path, state: Path) -> None:
        self._sysfs = Sysfs(root)
        self._state = state

    def answer(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """{"op": one of REQUESTS, and its fields} -> {"ok": True, ...} or {"ok": False, "kind": "usage", "file", "conf"
        or "failed", "errors": [...]}. Never raises for what a client sent or a board does. A signal that came meanwhile
        takes effect at the end."""
        try:
            with deferred_signals():
                return {"ok": True, **self._act(fields)}
        except _Refused as error:
            return _failure("usage", [str(error)])
        except ConfError as error:
            return _failure("conf", error.lines())
        except SysfsError as error:
            return _failure("file", [f"{self._sysfs.root / error.path}: {error.why}"])
        except PowerError as error:
            return _failure("failed", [str(error)])

    def _act(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        op = fields.get("op")
        if not isinstance(op, str) or op not in REQUESTS:
            raise _Refused(f"unknown request: op is one of {', '.join(REQUESTS)}")
        wanted = REQUESTS[op]
        if set(fields) != {"op", *wanted}:
            raise _Refused(f"{op} takes {' and '.join(wanted) or 'nothing'} and nothing else")
        values = [fields[key] for key in wanted]
        for key, value in zip(wanted, values, strict=True):
            if not isinstance(value, str) or not _NAME.fullmatch(value):
                raise _Refused(f"{key}: a name has 1 to 64 letters, digits and _ . + -")
        acts: dict[str, Callable[..., dict[str, Any]]] = {
            "mode": self._mode, "stage": self._stage, "fan": self._fan, "emc": self._emc}
        return acts[op](*values)

    def _mode(self, name: str) -> dict[str, Any]:
        conf, mode = self._named(name)
        enter(self._sysfs, conf, mode, governed=self._governed())
        return {"done": f"{mode.name} is active"}

    def _stage(self, name: str) -> dict[str, Any]:
        conf, mode = self._named(name)
        stage(self._sysfs, conf, mode)
        return {"done": f"{mode.name} waits for the next boot, which is yours to start; nothing else was changed"}

    def _governed(self) -> bool:
        """A file that may be there counts: it only makes us expect less."""
        try:
            return self._state.exists()
        except OSError:
            return True

    def _named(self, name: str) -> tuple[Conf, ConfMode]:
        conf = read_conf(self._sysfs)
        mode = conf.mode(name)
        if mode is None:
            raise _Refused(f"no mode {name!r} (known: {', '.join(each.name for each in conf.modes)})")
        return conf, mode

    def _fan(self, profile: str) -> dict[str, Any]:
        known = profiles(self._sysfs)
        if profile not in known:
            raise _Refused(f"no fan profile {profile!r} (known: {', '.join(known) or 'none'})")
        choose(self._sysfs, profile)
        return {"done": f"fan profile {profile} is active"}

    def _emc(self) -> dict[str, Any]:
        hz, percent = self._sysfs.read_emc()
        return {"emc_hz": hz, "emc_percent": percent}


def _failure(kind: str, errors: list[str]) -> dict[str, Any]:
    return {"ok": False, "kind": kind, "errors": errors}
