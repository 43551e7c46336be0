"""Readiness, reload and watchdog messages to systemd, through the systemd-python library.

Used by main only. Without NOTIFY_SOCKET (not started by systemd) nothing is sent; with it the library must be there.
"""

from __future__ import annotations

import os
import time
from typing import Protocol


class NotifyError(Exception):
    """systemd expects messages, but the library that sends them is missing."""


class Notifier(Protocol):
    """Sends one state text (`READY=1`, `STATUS=...`) to the service manager."""

    def __call__(self, state: str) -> object: ...


def connect() -> Notifier | None:
    """The way to systemd, or None when nobody listens. Raises NotifyError."""
    if not os.environ.get("NOTIFY_SOCKET"):
        return None
    try:
        from systemd import daemon
    except ImportError:
        raise NotifyError(
            "started by systemd with Type=notify, but the Python module 'systemd' is missing: "
            "install orind[systemd] (needs libsystemd-dev and pkg-config to build)"
        ) from None
    notifier: Notifier = daemon.notify
    return notifier


class ServiceManager:
    """What main tells systemd. Every method is a no-op without one."""

    def __init__(self, notifier: Notifier | None) -> None:
        self._notify = notifier
        self._watchdog_ns = int(os.environ.get("WATCHDOG_USEC", "0")) * 1000 // 2 if notifier is not None else 0
        self._next_watchdog_ns = 0

    def ready(self, status: str) -> None:
        self._send(f"READY=1\nSTATUS={status}")

    def reloading(self) -> None:
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self, status: str) -> None:
        self._send(f"STOPPING=1\nSTATUS={status}")

    def alive(self, now_ns: int) -> None:
        """Called once a loop: pings the watchdog at half its interval."""
        if self._watchdog_ns and now_ns >= self._next_watchdog_ns:
            self._next_watchdog_ns = now_ns + self._watchdog_ns
            self._send("WATCHDOG=1")

    def _send(self, state: str) -> None:
        if self._notify is not None:
            self._notify(state)
