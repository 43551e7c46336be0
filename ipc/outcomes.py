"""How a trigger can end: the one list, for the daemon, its clients and everything that shows numbers.

Imports nothing, so that the HTTP process and the command line start fast.
"""

from __future__ import annotations

OUTCOMES = ("ok", "degraded", "stale", "rejected", "expired", "error", "dropped")
