"""Readiness, reload and watchdog messages to systemd, and the sockets that it passes, through systemd-python.

Used by main only. Without NOTIFY_SOCKET (not started by systemd) nothing is sent; with it the library must be there.
Invariant: once READY=1 was said, a systemd that does not listen ends nobody.
"""

from __future__ import annotations

import logging
import os
import time
from typing import Protocol

from ..ipc.activation import PassedSockets
from ..ipc.bounded_text import bound_text

log = logging.getLogger("orind")
AGAIN_NS = 1_000_000_000
# Main pings at half of it. Under four busy processes a loop was late by 9 ms at most; where memory is swapped, by more.
WATCHDOG_LEAST_NS = 1_000_000_000
MISSING = (
    "the Python module 'systemd' is missing: install orind[systemd] (needs libsystemd-dev and pkg-config to build)"
)


class NotifyError(Exception):
    """systemd expects messages, but they cannot be sent."""


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
        raise NotifyError("started by systemd with Type=notify, but " + MISSING) from None
    notifier: Notifier = daemon.notify
    return notifier


def passed_sockets() -> PassedSockets:
    """What systemd passed to this process (LISTEN_FDS), taken out of the environment: it is nobody else's.

    Raises NotifyError.
    """
    if not os.environ.get("LISTEN_FDS"):
        return PassedSockets({})
    try:
        from systemd import daemon
    except ImportError:
        raise NotifyError("systemd passes sockets, but " + MISSING) from None
    passed = PassedSockets(daemon.listen_fds_with_names())
    for name in ("LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"):
        os.environ.pop(name, None)  # the library takes them from the C environment only
    return passed


class ServiceManager:
    """What main tells systemd. Every method is a no-op without one."""

    def __init__(self, notifier: Notifier | None, sockets: PassedSockets | None = None) -> None:
        """sockets: that it passed. Raises NotifyError for a WATCHDOG_USEC that is no number, or too short."""
        self.sockets = sockets or PassedSockets({})
        self._notify = notifier
        self._watchdog_ns = _watchdog_ns() if notifier is not None else 0
        self._next_watchdog_ns = self._again_at_ns = 0
        self._reached = False
        self._unsent: list[str] = []
        self._troubled = False

    def ready(self, status: str) -> None:
        """Raises NotifyError where this, the first word of all, cannot be said: systemd would end us anyway."""
        self._send(f"READY=1\nSTATUS={bound_text(status)}")

    def reloading(self) -> None:
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self, status: str) -> None:
        self._send(f"STOPPING=1\nSTATUS={bound_text(status)}")

    def alive(self, now_ns: int) -> None:
        """Called once a loop: pings the watchdog at half its interval, and says again what could not be said."""
        if self._unsent and now_ns >= self._again_at_ns:
            self._again_at_ns = now_ns + AGAIN_NS
            self._say_unsent()
        if self._watchdog_ns and now_ns >= self._next_watchdog_ns:
            self._next_watchdog_ns = now_ns + self._watchdog_ns
            self._try("WATCHDOG=1")

    def _send(self, state: str) -> None:
        if self._notify is None:
            return
        # of what waits only the latest matters: READY=1 after a RELOADING=1 that never arrived is as good
        self._unsent = [*self._unsent[-1:], state]
        self._say_unsent()

    def _say_unsent(self) -> None:
        while self._unsent and self._try(self._unsent[0]):
            del self._unsent[0]

    def _try(self, state: str) -> bool:
        """Whether it was said. A failure is logged once, until the next success."""
        assert self._notify is not None
        try:
            self._notify(state)
        except OSError as error:
            if not self._reached and state.startswith("READY"):
                raise NotifyError(f"systemd cannot be told that orind is ready: {error}") from None
            if not self._troubled:
                log.error("systemd cannot be told anything, which is tried again: %s", error)
            self._troubled = True
            return False
        self._reached, self._troubled = True, False
        return True


def _watchdog_ns() -> int:
    """Half of systemd's interval; 0 where it wants no pings."""
    text = os.environ.get("WATCHDOG_USEC", "0")
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise NotifyError(f"WATCHDOG_USEC is {text[:40]!r}, which is no number of microseconds: was it set by hand?")
    interval_ns = int(text) * 1000
    if 0 < interval_ns < WATCHDOG_LEAST_NS:
        raise NotifyError(
            f"WatchdogSec is {interval_ns / 1e9:g} s: main pings at half of that, and a loaded machine may hold it up "
            f"longer; set WatchdogSec={WATCHDOG_LEAST_NS // 10**9} or more in the unit (10 as shipped)"
        )
    return interval_ns // 2
