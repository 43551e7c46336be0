"""Listening sockets that systemd passes at the start, by name: endpoints that are written `systemd:NAME`.

Taken from the environment by daemon/notify.py, used by daemon/endpoints.py. systemd keeps its own hold on them, so a
client that connects while the daemon is down waits instead of being refused. Invariant: libzmq gets none that was not
looked at: it believes any number, and ends the whole process when accept() fails on it (ipc_listener.cpp).
"""

from __future__ import annotations

import os
import re
import socket
import stat
from collections.abc import Iterable, Mapping

from .errors import EndpointError

SCHEME = "systemd:"
NAME = r"[A-Za-z0-9_.@-]{1,64}"  # of those that FileDescriptorName= takes


def socket_name(endpoint: str) -> str:
    """NAME of `systemd:NAME`; '' for any other endpoint. Raises EndpointError for a name that cannot be."""
    if not endpoint.startswith(SCHEME):
        return ""
    name = endpoint[len(SCHEME) :]
    if re.fullmatch(NAME, name) is None:
        raise EndpointError(
            f"endpoint {endpoint!r}: the name is what FileDescriptorName= of the socket unit says, 1 to 64 of the "
            "characters A-Z a-z 0-9 _ . @ -"
        )
    return name


class PassedSockets:
    """What systemd passed. Owns the descriptors until close()."""

    def __init__(self, names: Mapping[int, str]) -> None:
        """names: of each descriptor."""
        self._names = dict(names)

    def take(self, endpoint: str) -> tuple[str, int]:
        """For `systemd:NAME`: where it listens, as ipc:///path or tcp://host:port, and the descriptor, still ours.

        Raises EndpointError that says what is wrong with it and which setting of the socket unit to look at.
        """
        name = socket_name(endpoint)
        found = [fd for fd, own in self._names.items() if own == name]
        if not found:
            passed = ", ".join(sorted(set(self._names.values()))) or "none at all"
            raise EndpointError(
                f"endpoint {endpoint}: systemd passes no socket of this name (it passes: {passed}); is the socket unit "
                f"active, and does it say FileDescriptorName={name}?"
            )
        if len(found) > 1:
            raise EndpointError(
                f"endpoint {endpoint}: systemd passes {len(found)} sockets of this name; a name is one endpoint: give "
                "each Listen...= a socket unit of its own"
            )
        same = [own for fd, own in self._names.items() if fd != found[0] and _inode(fd) == _inode(found[0])]
        if same:
            raise EndpointError(
                f"endpoint {endpoint}: systemd passes the same socket as {same[0]} too: whoever waits for its next "
                "connection would be left waiting; give each endpoint a Listen...= of its own"
            )
        try:
            return _listens_at(found[0]), found[0]
        except EndpointError as error:
            raise EndpointError(f"endpoint {endpoint}: {error}") from None

    def unclaimed(self, endpoints: Iterable[str]) -> list[str]:
        """Names that none of the endpoints is."""
        claimed = {socket_name(endpoint) for endpoint in endpoints}
        return sorted(set(self._names.values()) - claimed)

    def close(self) -> None:
        for fd in self._names:
            os.close(fd)
        self._names.clear()


def _inode(fd: int) -> tuple[int, int]:
    found = os.fstat(fd)
    return found.st_dev, found.st_ino


def _listens_at(fd: int) -> str:
    """Raises EndpointError for what libzmq could not accept connections from."""
    if not stat.S_ISSOCK(os.fstat(fd).st_mode):
        raise EndpointError("what systemd passes is no socket: use ListenStream=")
    with socket.socket(fileno=os.dup(fd)) as sock:
        if sock.family not in (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6):
            raise EndpointError(
                f"a socket of family {int(sock.family)} cannot be served: use ListenStream=/path or a port"
            )
        if sock.type != socket.SOCK_STREAM:
            raise EndpointError("what systemd passes is no stream socket: use ListenStream=")
        if not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            raise EndpointError("what systemd passes does not listen: the socket unit must say Accept=no")
        address = sock.getsockname()
        if sock.family == socket.AF_INET:
            return f"tcp://{address[0]}:{address[1]}"
        if sock.family == socket.AF_INET6:
            return f"tcp://[{address[0]}]:{address[1]}"
    if not isinstance(address, str) or not address:
        raise EndpointError("a socket with an abstract name cannot be closed to newcomers: use ListenStream=/path")
    return f"ipc://{address}"
