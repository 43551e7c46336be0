"""Whether somebody is at the other end of a socket that connects, told by ZeroMQ's own events.

Used by the client library. For DEALER the simpler way, ZMQ_IMMEDIATE, costs answers: when the peer ends, libzmq then
throws away what it had received and the application had not read yet, such as the last words of a daemon that stops.
Not for a socket that binds: the events do not say whose handshake succeeded, so that a stranger who comes and goes
could not be told from a peer who leaves; and there POLLOUT knows, for a bound socket has one pipe a peer and no other
(libzmq gives one to a stranger too who says anything and stays: what he gets of frames is sent again after a while).
"""

from __future__ import annotations

import time

import zmq
from zmq.utils.monitor import recv_monitor_message

from .endpoint import Socket

EVENTS = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED


class Connection:
    """Follows the one peer of a socket. Make it before the socket connects; close it before the socket."""

    def __init__(self, sock: Socket) -> None:
        self._socket = sock
        self._monitor = sock.get_monitor_socket(EVENTS)
        self._up = False

    def up(self) -> bool:
        """Whether a peer is there, as far as is known now."""
        while self._monitor.poll(0):
            event = recv_monitor_message(self._monitor, zmq.NOBLOCK)["event"]
            self._up = event == zmq.EVENT_HANDSHAKE_SUCCEEDED
        return self._up

    def wait(self, timeout_s: float) -> bool:
        """Wait for a peer; False when none came."""
        end = time.monotonic() + timeout_s
        while not self.up():
            left = end - time.monotonic()
            if left <= 0 or not self._monitor.poll(int(left * 1000) + 1):
                return self.up()
        return True

    def close(self) -> None:
        """Both ends: an open one would keep the context from ending."""
        if not self._socket.closed:  # it is where attaching it failed
            self._socket.disable_monitor()
        self._monitor.close(0)
