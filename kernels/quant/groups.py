"""Readers of a tensor, and those of them that may share one code of it. Caller: `views.py`."""

from __future__ import annotations

from dataclasses import dataclass

from .calibrate import Histogram


@dataclass(frozen=True)
class View:
    """One reader of a tensor. `scale`: of its pair, where it is one; `seen`: what it must keep apart, where known."""

    reader: int
    tensor: str
    scale: float | None
    seen: Histogram | None


@dataclass
class Group:
    """Readers of one copy, and the scale that suits them."""

    scale: float
    views: list[View]

    @property
    def kept(self) -> float | None:
        """The largest scale of a pair among them."""
        return max((view.scale for view in self.views if view.scale is not None), default=None)
