"""What a pool refuses, each with what was asked for and by whom. An engine ends with it, or refuses a frame."""

from __future__ import annotations


class PoolError(RuntimeError):
    """A block was freed twice, is not of this pool, or lies upon another: whoever did it must not go on."""


class PoolExhausted(PoolError):
    """Neither the pool nor its emergency reserve holds a piece that large."""
