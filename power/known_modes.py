"""Whose modes of nvpmodel count on a board: those of its own nvpmodel.conf, and our facts' where it has none.

Used by envelope.py, actuators.py and `orind check`. Invariant: an id or a name is never taken from one of the two and
its caps from the other.
"""

from __future__ import annotations

from .board import BoardFacts
from .errors import ConfError, SysfsError
from .nvpmodel import Conf, read_conf
from .sysfs import Sysfs


def known_modes(sysfs: Sysfs, facts: BoardFacts) -> BoardFacts | Conf:
    """As it is now; `.modes` and `.mode(ID or NAME)` are what both have."""
    return own_conf(sysfs) or facts


def own_conf(sysfs: Sysfs) -> Conf | None:
    """The board's, where there is one that can be read."""
    try:
        return read_conf(sysfs)
    except (SysfsError, ConfError):
        return None  # `orind power modes` says what is wrong with the file
