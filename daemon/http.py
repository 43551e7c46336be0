"""The HTTP process: health, metrics and a small status page, from main's stats page and nothing else.

Started by the nursery (`python -m orind.daemon.http STATS_FD LISTEN_FD HEARTBEAT_FD`). It never asks main, so no
request can delay a frame. A stats page that stopped moving is itself unhealthy.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest

from ..ipc import meminfo
from ..ipc.bounded_text import bound_text
from ..ipc.channel import Channel
from ..ipc.errors import StatsPageError
from ..ipc.stats_page import StatsReader
from .lifeline import begin_child
from .metrics import StatusCollector
from .status import with_latency
from .status_page import render

STALE_NS = 2_000_000_000
REQUEST_TIMEOUT_S = 5
CONNECTIONS_MAX = 16
BEAT = b"."


def health(status: dict[str, Any], age_ns: int, memory: float) -> tuple[int, list[str]]:
    """The HTTP status code and its reasons. 200 with a reason means: serving, but not as it should be."""
    if age_ns > STALE_NS:
        return 503, [f"main has not moved for {age_ns / 1e9:.1f} s"]
    reasons, limit = list(status["health"]["reasons"]), status["memory_max_percent"]
    if memory > limit:
        return 503, [f"{memory:.0f} % of the memory is in use, the limit is {limit:g} %", *reasons]
    return (200 if status["health"]["ok"] else 503), reasons


class Handler(BaseHTTPRequestHandler):
    """GET /healthz, /metrics, /status.json and / ; everything else is 404."""

    server: HttpServer
    protocol_version = "HTTP/1.1"
    timeout = REQUEST_TIMEOUT_S

    def do_GET(self) -> None:
        try:
            counters, status = self.server.stats.read_counters(), self.server.stats.read_blob()
        except StatsPageError as error:
            self._answer(503, "text/plain; charset=utf-8", f"{error}\n".encode())
            return
        if not status:
            self._answer(503, "text/plain; charset=utf-8", b"main has written no statistics yet\n")
            return
        status = with_latency(status)
        code, reasons = health(status, time.monotonic_ns() - counters.now_ns, meminfo.read().used_percent)
        path = self.path.split("?", 1)[0]
        if path == "/healthz":
            body = json.dumps({"ok": code == 200, "state": status["state"], "reasons": reasons}) + "\n"
            self._answer(code, "application/json", body.encode())
        elif path == "/metrics":
            registry = CollectorRegistry(auto_describe=False)
            registry.register(StatusCollector(status, healthy=code == 200))
            self._answer(200, "text/plain; version=0.0.4; charset=utf-8", generate_latest(registry))
        elif path == "/status.json":
            self._answer(200, "application/json", (json.dumps(status) + "\n").encode())
        elif path == "/":
            self._answer(200, "text/html; charset=utf-8", render(status, code, reasons).encode())
        else:
            self._answer(404, "text/plain; charset=utf-8", b"try /healthz, /metrics, /status.json or /\n")

    def _answer(self, code: int, kind: str, body: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Requests are not logged: a load balancer asks every second, for years."""


class HttpServer(ThreadingHTTPServer):
    """Serves on a socket that main has bound already, so that a port in use is main's error at start."""

    daemon_threads = True
    request_queue_size = CONNECTIONS_MAX

    def __init__(self, listener: socket.socket, stats: StatsReader, heartbeat: Channel | None = None) -> None:
        self.stats = stats
        self.heartbeat = heartbeat
        self._room = threading.Semaphore(CONNECTIONS_MAX)
        super().__init__(listener.getsockname()[:2], Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener

    def process_request(self, request: Any, client_address: Any) -> None:
        """At most CONNECTIONS_MAX at a time, one more is closed unread: slow readers cost a bound of threads."""
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def server_bind(self) -> None:
        """Bound by main."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hung up, or did not read in time, is no event; anything else is one line."""
        error = sys.exception() if sys.version_info >= (3, 11) else sys.exc_info()[1]
        if not isinstance(error, ConnectionError | TimeoutError):
            print(bound_text(f"http: a request failed: {type(error).__name__}: {error}"), file=sys.stderr)

    def service_actions(self) -> None:
        """Once a turn of the serving loop, twice a second at least: main hears that it turns."""
        if self.heartbeat is not None:
            self.heartbeat.send(BEAT)


def main() -> int:
    begin_child()
    stats = StatsReader(int(sys.argv[1]))
    listener = socket.socket(fileno=int(sys.argv[2]))
    HttpServer(listener, stats, Channel.from_fd(int(sys.argv[3]), blocking=False)).serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
