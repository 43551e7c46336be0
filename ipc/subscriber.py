"""Reading results: the other half of the client library.

Used by result consumers and `orind listen`; imported through client.py. Invariant: a result that cannot be parsed is
counted and skipped, it never ends the iteration.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import zmq

from . import wire
from .connection import Connection
from .endpoint import RESULT_BYTES_MAX, Context, attach, make_socket
from .errors import WireError
from .wire import Result


class Subscriber:
    """Iterates over the results that an orind publishes; ends when none came for timeout_s (None: never).

    cameras: only these (all when empty). Frames answered before the subscription arrived are not seen: PUB/SUB.
    """

    def __init__(
        self,
        endpoint: str,
        cameras: Sequence[str] = (),
        *,
        timeout_s: float | None = None,
        hwm: int = 1000,
        context: Context | None = None,
    ) -> None:
        """Raises EndpointError, WireError (a camera name that cannot be)."""
        self.endpoint, self.cameras, self.timeout_s = endpoint, tuple(cameras), timeout_s
        self.malformed = 0
        topics = [wire.result_topic(wire.parse_camera(camera.encode())) for camera in cameras] or [b"res/"]
        self._own_context = context is None
        self._context: Context = context if context is not None else zmq.Context()
        self._socket = make_socket(self._context, zmq.SUB, hwm=hwm, linger_ms=0, max_bytes=RESULT_BYTES_MAX)
        self._connection = Connection(self._socket)
        for topic in topics:
            self._socket.subscribe(topic)
        try:
            attach(self._socket, endpoint, bind=False)
        except BaseException:
            self.close()
            raise

    def wait_connected(self, timeout_s: float) -> bool:
        """Whether a daemon is at the other end, as soon as one is; False when none came in timeout_s."""
        return self._connection.wait(timeout_s)

    def receive(self, timeout_s: float | None = None) -> Result | None:
        """The next result, or None when none came in timeout_s (None: wait for ever). Malformed ones are counted."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left_ms = None if end is None else max(0, int((end - time.monotonic()) * 1000) + 1)
            if not self._socket.poll(left_ms):
                return None
            result = self._parse(self._socket.recv_multipart())
            if result is not None:
                return result

    def _parse(self, parts: list[bytes]) -> Result | None:
        try:
            result = wire.parse_result(parts)
        except WireError:
            self.malformed += 1
            return None
        # Topics match by prefix: a subscription to cam1 hears cam10 too.
        return result if not self.cameras or result.camera in self.cameras else None

    def __iter__(self) -> Iterator[Result]:
        while (result := self.receive(self.timeout_s)) is not None:
            yield result

    def close(self) -> None:
        self._connection.close()
        self._socket.close()
        if self._own_context:
            self._context.term()

    def __enter__(self) -> Subscriber:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
