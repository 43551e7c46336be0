"""Main's side of the HTTP process: the listening socket, bound at start, and a process behind it that is replaced.

Owned by `daemon.py`. Binding here makes a port in use an error of `orind serve`, not of a child that nobody watches.
"""

from __future__ import annotations

import os
import socket

from ..ipc.stats_page import StatsWriter
from .config import Http
from .nursery_client import Child, NurseryClient

RESPAWN_NS = 1_000_000_000


class HttpLink:
    """The HTTP process, if the configuration has one. `address` is None where it has not."""

    def __init__(self, section: Http | None, nursery: NurseryClient, stats: StatsWriter) -> None:
        """Raises OSError with what to do when the address cannot be had."""
        self._nursery = nursery
        self._stats = stats
        self._child: Child | None = None
        self._respawn_at_ns = 0
        self._listener = None if section is None else _listen(section)
        self.address: str | None = None
        if self._listener is not None:
            host, port = self._listener.getsockname()[:2]
            self.address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def tick(self, now_ns: int) -> None:
        """Start the process, and start it anew when it has ended."""
        ended = self._child is None or self._child.status is not None
        if self._listener is None or not ended or now_ns < self._respawn_at_ns:
            return
        self._respawn_at_ns = now_ns + RESPAWN_NS
        fd = self._stats.readonly_fd()
        try:
            self._child = self._nursery.spawn("http", [fd, self._listener.fileno()], [])
        finally:
            os.close(fd)

    def close(self) -> None:
        if self._listener is not None:
            self._listener.close()


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
