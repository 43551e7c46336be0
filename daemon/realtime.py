"""What makes main's loop steady: pinned CPUs, a FIFO priority, locked memory, no collections in the hot path.

Called once by main, after everything is allocated. A wish of the configuration is granted or refused with its remedy.
"""

from __future__ import annotations

import ctypes
import errno
import gc
import os
import resource

from .sections import Realtime

MCL_CURRENT, MCL_FUTURE = 1, 2
COLLECT_IDLE_NS = 5_000_000_000
CONFIGURED = "SC_NPROCESSORS_CONF"  # CPUs that exist, online or not


class RealtimeError(Exception):
    """The kernel refused a setting of the `realtime` section."""


def apply(settings: Realtime) -> None:
    """Apply the section. Raises RealtimeError with what to allow."""
    if settings.cpus:
        try:
            os.sched_setaffinity(0, settings.cpus)
        except (OSError, ValueError) as error:
            offline = getattr(error, "errno", None) == errno.EINVAL and max(settings.cpus) < os.sysconf(CONFIGURED)
            if not offline:  # else the nursery puts main there as soon as one is online, and health says so until then
                raise RealtimeError(
                    f"realtime.cpus {settings.cpus}: {error}; online are {sorted(os.sched_getaffinity(0))}"
                ) from None
    if settings.fifo_priority:
        try:
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(settings.fifo_priority))
        except PermissionError:
            raise RealtimeError(
                f"realtime.fifo_priority {settings.fifo_priority}: not permitted; set LimitRTPRIO= in the unit"
            ) from None
    if settings.lock_memory:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mlockall(MCL_CURRENT | MCL_FUTURE) != 0:
            limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
            raise RealtimeError(
                f"realtime.lock_memory: {os.strerror(ctypes.get_errno())} with a limit of {limit} bytes; "
                "set LimitMEMLOCK=infinity in the unit"
            )
    quiet_collector()


def quiet_collector() -> None:
    """No garbage collection from here on; freeze() alone would not stop it. The loop collects when idle."""
    gc.collect()
    gc.freeze()
    gc.disable()


class IdleCollector:
    """Collects all that is not frozen and gives free pages back, when no frame waits for it.

    All of it, not only what is young: a circle that outlives one collection would stay for ever, and CPython gives back
    its lists of free tuples, which grow with every reload until they are full, in a whole collection only. What was
    there at the start is frozen and costs nothing. glibc by itself keeps the most that was ever allocated at once;
    malloc_trim(3) gives back what lies free, so that the memory that main holds is the memory that it uses. A frame
    that comes just then waits for it: 2 to 3.4 ms with as many answers remembered as there can be, 0.1 ms of it the
    trimming (measured in main on a shared x86-64).
    """

    def __init__(self) -> None:
        self._next_ns = 0
        self._libc = ctypes.CDLL(None)

    def tick(self, in_flight: int, now_ns: int) -> None:
        if not in_flight and now_ns >= self._next_ns:
            self._next_ns = now_ns + COLLECT_IDLE_NS
            gc.collect()
            self._libc.malloc_trim(0)
