"""Result sink: a PUB socket that tells every subscriber every result, and waits for none.

Called by main once per outcome. Invariant: never blocks; a subscriber that does not read loses results (ZeroMQ drops
the newest for it alone), the others do not notice.
"""

from __future__ import annotations

from collections.abc import Sequence

import zmq

from .endpoint import Context, make_socket, send_parts
from .gate import Gate


class ResultSink:
    """PUB, bound."""

    def __init__(self, context: Context, endpoint: str, *, hwm: int = 1000, fd: int | None = None) -> None:
        """Raises EndpointError."""
        self.endpoint = endpoint
        # A PUB socket reads subscriptions only, so the bound on what a peer may send is small.
        self.socket = make_socket(context, zmq.PUB, hwm=hwm, linger_ms=500, max_bytes=1024)
        self.gate = Gate(self.socket, endpoint, fd)

    def publish(self, parts: Sequence[bytes]) -> None:
        """[topic][JSON][rows]. Returns at once."""
        send_parts(self.socket, parts)

    def close(self) -> None:
        self.gate.close()
        self.socket.close()
