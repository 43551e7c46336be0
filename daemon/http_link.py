"""Main's side of the HTTP process: the listening socket, bound at start, and a process behind it that is replaced.

Owned by `daemon.py`. Binding here makes a port in use an error of `orind serve`, not of a child. Invariant: a process
that is missing or hangs is replaced, and health says so meanwhile.
"""

from __future__ import annotations

import logging
import os
import socket

from ..ipc.channel import Channel, make_pair
from ..ipc.errors import ChannelError, IpcError
from ..ipc.stats_page import StatsWriter
from .nursery_client import Child, NurseryClient
from .poller import Watcher
from .respawn import Respawn
from .sections import Http

log = logging.getLogger("orind")
RESPAWN_NS = 1_000_000_000
START_TIMEOUT_NS = 20_000_000_000
SILENT_NS = 5_000_000_000  # its serving loop beats twice a second


class HttpLink:
    """The HTTP process, if the configuration has one. `address` is None where it has not."""

    def __init__(self, section: Http | None, nursery: NurseryClient, watcher: Watcher, stats: StatsWriter) -> None:
        """Raises OSError with what to do when the address cannot be had."""
        self._nursery = nursery
        self._watcher = watcher
        self._stats = stats
        self._child: Child | None = None
        self._channel: Channel | None = None
        self._respawn = Respawn(RESPAWN_NS)
        self._silent_at_ns = 0
        self._listener = None if section is None else _listen(section)
        self.address: str | None = None
        if self._listener is not None:
            host, port = self._listener.getsockname()[:2]
            self.address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    @property
    def problem(self) -> str:
        """Why nobody answers HTTP now, or ''."""
        return self._respawn.problem

    def tick(self, now_ns: int) -> None:
        """Start the process, kill one that is silent, and start it anew when it has ended."""
        if self._listener is None:
            return
        if self._channel is not None and now_ns > self._silent_at_ns:
            self._lost("it was silent and is replaced", now_ns)
        ended = self._child is None or self._child.status is not None
        if self._channel is None and ended and self._respawn.due(now_ns):
            self._spawn(self._listener, now_ns)

    def close(self) -> None:
        self._hang_up()
        if self._listener is not None:
            self._listener.close()

    def _spawn(self, listener: socket.socket, now_ns: int) -> None:
        try:
            channel, theirs = make_pair()
        except OSError as error:
            self._respawn.failed(now_ns, str(error))
            return
        with theirs:
            try:
                fd = self._stats.readonly_fd()
                try:
                    self._child = self._nursery.spawn("http", [fd, listener.fileno(), theirs.fileno()], [])
                finally:
                    os.close(fd)
            except (IpcError, OSError) as error:
                channel.close()
                self._respawn.failed(now_ns, str(error))
                return
        self._channel = channel
        self._silent_at_ns = now_ns + START_TIMEOUT_NS
        self._watcher.watch(channel.fileno(), self._on_readable)

    def _on_readable(self, now_ns: int) -> None:
        assert self._channel is not None
        try:
            received = self._channel.recv_all()
        except ChannelError as error:
            self._lost(str(error), now_ns)
            return
        if received.messages:
            self._silent_at_ns = now_ns + SILENT_NS
            self._respawn.served()
        if received.ended:
            self._lost("it has ended", now_ns)

    def _lost(self, reason: str, now_ns: int) -> None:
        log.error("the HTTP process: %s", reason)
        self._respawn.failed(now_ns, reason)
        if self._child is not None:
            self._nursery.kill(self._child)
        self._hang_up()

    def _hang_up(self) -> None:
        if self._channel is not None:
            self._watcher.forget(self._channel.fileno())
            self._channel.close()
            self._channel = None


def _listen(section: Http) -> socket.socket:
    family = socket.AF_INET6 if ":" in section.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((section.host, section.port))
        listener.listen(16)
    except OSError as error:
        listener.close()
        text = f"http: cannot listen on {section.host}:{section.port}: {error.strerror}; is another program using it?"
        raise OSError(error.errno, text) from None
    return listener
