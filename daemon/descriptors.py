"""How many descriptors main may have open, how many it needs, and what happens before they run out.

libzmq ends the process when it has none left for a new connection, and engines could no longer be started. So main
takes the hard limit at its start, refuses to start below what its configuration needs, counts, and shuts the doors of
its endpoints before the last ones are gone. Invariant: those who are connected keep being served.
"""

from __future__ import annotations

import errno
import logging
import resource
from pathlib import Path
from typing import Protocol

from ..ipc.control import CLIENTS_MAX
from ..ipc.gate import BACKLOG
from .config import Config
from .retired import RETIRED_MAX

OPEN = Path("/proc/self/fd")
log = logging.getLogger("orind")
OWN = 64 + CLIENTS_MAX  # the interpreter's, slots, stats, signals, nursery, ZeroMQ's threads; a margin
GENERATION = 24  # engines of one configuration with their channels and result memory, one of them being replaced
GENERATIONS = 2 + RETIRED_MAX  # the one that serves, the next one, those that still answer what they have
PLANS = GENERATIONS + 2  # and of what is kept for a rollback, and of what serves while it is to be kept next
CONNECTIONS_LEAST = 16
SHORTEST_NS, LONGEST_NS = 5_000_000, 1_000_000_000
CONNECT_NS = 20_000  # no faster does a storm of connections come in; measured: about 40,000 ns each


class LimitTooLow(OSError):
    """The limit of open files does not suffice for this configuration, however few are open."""


class Doors(Protocol):
    """The endpoints as this needs them."""

    def shut(self) -> None: ...
    def reopen(self) -> None: ...


def raise_limit() -> int:
    """Take what the hard limit allows, -> the limit that holds now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def listeners(config: Config) -> int:
    return sum(source.attach == "bind" for source in config.sources) + (config.results is not None)


def reserve(config: Config, limit: int) -> int:
    """Descriptors that stay free of connections: what stands at the doors already, and what comes between two looks."""
    return BACKLOG * listeners(config) + 64 + min(limit // 8, 4096)


def _sockets(config: Config) -> int:
    return 4 * (len(config.sources) + 1)


def needed(config: Config) -> int:
    """The least limit with which a configuration can be served: itself, reloads beside it, a few cameras."""
    own = OWN + _sockets(config) + config.decode.workers + GENERATIONS * GENERATION
    own += PLANS * len(config.models)
    return (own + BACKLOG * listeners(config) + 64 + CONNECTIONS_LEAST) * 8 // 7 + 1


def count_open() -> int:
    """Descriptors of this process. Linux 6.2 and later say it without listing them."""
    return OPEN.stat().st_size or sum(1 for _ in OPEN.iterdir())


class Descriptors:
    """Counts, at the latest every second, the oftener the fewer are left."""

    def __init__(self, config: Config, doors: Doors, limit: int) -> None:
        """Raises LimitTooLow."""
        self._doors = doors
        self._limit = limit
        self._next_ns = 0
        self.problem = ""
        self.check(config)
        self.adopt(config)

    def check(self, config: Config) -> None:
        """Raises LimitTooLow where the limit is below what this configuration needs."""
        least = needed(config)
        if self._limit < least:
            raise LimitTooLow(
                errno.EMFILE,
                f"the limit of open files is {self._limit}, this configuration needs at least {least}: "
                "raise LimitNOFILE= in the unit, or `ulimit -Hn`",
            )

    def afford(self, config: Config) -> None:
        """Raises LimitTooLow, and OSError (EMFILE) where engines of this configuration have no room beside what is open
        now, its plans among it: other generations may have had more models than it has."""
        self.check(config)
        used, more = count_open(), GENERATION + _sockets(config)
        if used + more > self._limit:
            raise OSError(
                errno.EMFILE,
                f"{used} of {self._limit} descriptors are in use, the new engines and endpoints need about {more}: ask "
                "again when fewer cameras are connected, or raise LimitNOFILE= in the unit",
            )

    def adopt(self, config: Config) -> None:
        """From now on keep what this configuration needs."""
        self._most = self._limit - reserve(config, self._limit)

    def tick(self, now_ns: int) -> None:
        """Count if it is time to; shut the doors above the bound, open them when a sixteenth has become free."""
        if now_ns < self._next_ns:
            return
        used = count_open()
        self._next_ns = now_ns + max(SHORTEST_NS, min(LONGEST_NS, (self._most - used) * CONNECT_NS))
        try:
            if used > self._most:
                self._doors.shut()
                if not self.problem:
                    log.error("%d of %d descriptors are in use: no further connections are taken", used, self._limit)
                self.problem = f"no further connections are taken: {used} of {self._limit} descriptors are in use"
            elif self.problem and used < self._most - self._limit // 16:
                self._doors.reopen()
                log.info("%d of %d descriptors are in use: connections are taken again", used, self._limit)
                self.problem = ""
        except OSError as error:
            if not self.problem:
                log.error("the endpoints cannot be closed to new connections: %s", error)
            self.problem = f"{used} of {self._limit} descriptors are in use, the endpoints stay as they are: {error}"
