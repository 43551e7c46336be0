"""Tells a library that is not installed from a fault of our own imports.

Callers: the commands that need an extra (`orind[build]`). Invariant: what is ours never reads as something to install.
"""

from __future__ import annotations


def is_own(error: ImportError) -> bool:
    """True where a module of ours, or a name in one, is what is missing: a fault to be shown whole."""
    return error.name is None or error.name.partition(".")[0] == __name__.partition(".")[0]
