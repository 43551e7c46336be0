"""Which version of orind this is, as its installation says.

Used by `orind --version`, the status and the page.
"""

from __future__ import annotations

from importlib import metadata


def installed() -> str:
    """Such as `0.1.0`; `unknown` where it runs from a bare checkout that nothing has installed."""
    try:
        return metadata.version("orind")
    except metadata.PackageNotFoundError:
        return "unknown"
