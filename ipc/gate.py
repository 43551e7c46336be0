"""Closes the door of a bound socket to new clients, and opens it again; those who are connected notice nothing.

Used by source.py and sink.py, worked by main when descriptors run short: libzmq ends the whole process when accept() on
an ipc socket finds none (ipc_listener.cpp, errno_assert), and zmq_unbind would hang up on every client. Invariant: a
socket that is closed leaves no path behind (libzmq leaves it), but systemd's, which lives on open.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import stat
import struct
from pathlib import Path

import zmq
from zmq.utils.monitor import recv_monitor_message

from .endpoint import NOBLOCK, Socket, attach, ipc_path

SHUT_SUFFIX = ".full"
BACKLOG = 100  # ZMQ_BACKLOG's default: so many can still come in after the door is shut
SO_ATTACH_FILTER, SO_DETACH_FILTER = 26, 27  # Linux, asm-generic/socket.h; the socket module does not name them
DROP_ALL = struct.pack("=HBBI", 6, 0, 0, 0)  # classic BPF: `ret #0`, keep no byte of any packet


class Gate:
    """A bound endpoint's door. An ipc path is moved aside; a tcp listener drops every SYN (the client tries again)."""

    def __init__(self, sock: Socket, endpoint: str, fd: int | None = None) -> None:
        """Binds. fd: a listening socket that systemd passed for it. Raises EndpointError, with the socket closed."""
        self.is_shut = False
        self._passed = fd
        self._socket = sock
        self._endpoint = endpoint
        self._path = ipc_path(endpoint)
        self._listener = -1  # libzmq's own descriptor, or systemd's; tcp only
        if fd is not None:
            attach(sock, endpoint, bind=True, fd=fd)
            self._listener = fd if endpoint.startswith("tcp") else -1
            self._reopen_passed()
            return
        if endpoint.startswith("tcp"):
            self._bind_tcp()
            return
        attach(sock, endpoint, bind=True)
        self._forget_old_path()

    def shut(self) -> None:
        """Let nobody in. Raises OSError."""
        if self.is_shut:
            return
        if self._path:
            Path(self._path).rename(self._path + SHUT_SUFFIX)
        elif self._listener >= 0:
            program = ctypes.create_string_buffer(DROP_ALL, len(DROP_ALL))
            self._set(SO_ATTACH_FILTER, struct.pack("@HP", 1, ctypes.addressof(program)))
        else:  # an abstract name can only be given up; its clients come back when it is there again
            self._socket.unbind(self._endpoint)
        self.is_shut = True

    def open(self) -> None:
        """Let clients in again. Raises OSError."""
        if not self.is_shut:
            return
        if self._path:
            Path(self._path + SHUT_SUFFIX).rename(self._path)
        elif self._listener >= 0:
            self._set(SO_DETACH_FILTER, bytes(4))
        else:
            try:
                self._socket.bind(self._endpoint)
            except zmq.ZMQError as error:  # libzmq has not let go of it yet
                raise OSError(error.errno, str(error)) from None
        self.is_shut = False

    def close(self) -> None:
        """Call before the socket is closed."""
        with contextlib.suppress(OSError):  # its folder was removed: nothing is left to put back, or to remove
            if self._passed is not None:
                self.open()
            elif self._path:
                Path(self._path + SHUT_SUFFIX if self.is_shut else self._path).unlink()

    def _bind_tcp(self) -> None:
        """libzmq tells the listener's descriptor in its event LISTENING, within bind()."""
        monitor = self._socket.get_monitor_socket(int(zmq.EVENT_LISTENING))
        try:
            attach(self._socket, self._endpoint, bind=True)
            self._listener = int(recv_monitor_message(monitor, NOBLOCK)["value"])
            self._socket.disable_monitor()
        finally:
            monitor.close(linger=0)

    def _reopen_passed(self) -> None:
        """A daemon that died behind a shut door has left systemd's socket shut; and its backlog may be any."""
        assert self._passed is not None
        with socket.socket(fileno=os.dup(self._passed)) as listener:
            listener.listen(BACKLOG)
        if self._listener >= 0:
            with contextlib.suppress(FileNotFoundError):  # no filter is attached
                self._set(SO_DETACH_FILTER, bytes(4))
        elif os.path.lexists(self._path + SHUT_SUFFIX) and not os.path.lexists(self._path):
            Path(self._path + SHUT_SUFFIX).rename(self._path)

    def _set(self, option: int, value: bytes) -> None:
        with socket.socket(fileno=os.dup(self._listener)) as listener:
            listener.setsockopt(socket.SOL_SOCKET, option, value)

    def _forget_old_path(self) -> None:
        """A daemon that died behind a shut door has left its path aside."""
        old = self._path + SHUT_SUFFIX
        if self._path and os.path.lexists(old) and stat.S_ISSOCK(os.lstat(old).st_mode):
            Path(old).unlink()
