"""Whose modes of nvpmodel count on a board: those of its own nvpmodel.conf, and our facts' where it has none.

Used by actuators.py and by `orind check`. Invariant: an id or a name is never taken from one of the two and its caps
from the other.
"""

from __future__ import annotations

from .board import BoardFacts
from .errors import ConfError, SysfsError
from .nvpmodel import Conf, read_conf
from .sysfs import Sysfs


def known_modes(sysfs: Sysfs, facts: BoardFacts) -> BoardFacts | Conf:
    """As it is now; `.modes` and `.mode(ID or NAME)` are what both have."""
    try:
        return read_conf(sysfs)
    except (SysfsError, ConfError):
        return facts  # `orind power modes` says what is wrong with the file
