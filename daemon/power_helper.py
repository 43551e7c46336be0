"""The power helper: does the few things that need root, for root and the members of one group, one after the other.

Started by orind-power.socket (`python -I -m orind.daemon.power_helper`), which passes it the listening socket; ends
after IDLE_S without a client. Imports no zmq, yaml or pydantic. Invariants: who a client is, the kernel says
(SO_PEERCRED, SO_PEERGROUPS); a request is one datagram of JSON that power/privileged.py knows; no client, however slow
or hostile, keeps the others from being served; nothing a client sends becomes a path, an option or a command; a signal
ends it after the answer to what is under way.
"""

from __future__ import annotations

import argparse
import grp
import os
import select
import socket
import struct
import sys
import time
from pathlib import Path

from ..ipc.control import ControlServer
from ..ipc.exit_codes import Exit
from ..power.held import STATE_NAME
from ..power.privileged import Privileged
from .control_options import DEFAULT_RUN_DIR
from .signals import SignalInbox

SOCKET = Path("/run/orind-power.sock")
GROUP = "orind"
STATE = Path(DEFAULT_RUN_DIR) / STATE_NAME
IDLE_S = 60.0
SILENT_S = 30.0  # a client that asks nothing for so long gives its place to another one
FIRST_PASSED_FD = 3  # sd_listen_fds(3)
_SO_PEERGROUPS = 59  # Linux 4.13; not in the socket module
_GROUPS_MAX = 256  # what getsockopt() of Python takes; who is in more must be it by primary group


def may_ask(sock: socket.socket, group: int) -> bool:
    """Whether the peer is root or of the group, primary or not, as it was when it connected."""
    _, uid, gid = struct.unpack("iII", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    if uid == 0 or gid == group:
        return True
    try:
        raw = sock.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, 4 * _GROUPS_MAX)
    except OSError:  # too many groups, or a kernel that does not tell: not known is no
        return False
    return group in struct.unpack(f"{len(raw) // 4}I", raw)


def passed_socket() -> int:
    """The one socket that systemd passes. Raises ValueError with what is wrong."""
    if os.environ.get("LISTEN_PID") != str(os.getpid()) or os.environ.get("LISTEN_FDS") != "1":
        raise ValueError("is started by orind-power.socket, which passes it one socket; there is none")
    with socket.socket(fileno=os.dup(FIRST_PASSED_FD)) as sock:
        if (sock.family, sock.type) != (socket.AF_UNIX, socket.SOCK_SEQPACKET):
            raise ValueError("was passed another socket than ListenSequentialPacket= makes")
    return FIRST_PASSED_FD


def serve(server: ControlServer, privileged: Privileged, idle_s: float, silent_s: float = SILENT_S,
          inbox: SignalInbox | None = None) -> None:
    """Answer until nobody was there for `idle_s`, or a signal came into `inbox`."""
    poller = select.poll()
    poller.register(server, select.POLLIN)
    if inbox is not None:
        poller.register(inbox.fd, select.POLLIN)
    heard_s: dict[int, float] = {}
    last_s = time.monotonic()
    while heard_s or time.monotonic() - last_s < idle_s:
        for descriptor, _ in poller.poll(min(idle_s, silent_s) * 1000):
            if inbox is not None and inbox.take():
                return
            last_s = time.monotonic()
            if descriptor == server.fileno():
                for client in server.accept():
                    poller.register(client, select.POLLIN)
                    heard_s[client] = last_s
                continue
            taken = server.take(descriptor)
            if taken is not None:
                server.reply(descriptor, privileged.answer(taken.fields))
            heard_s[descriptor] = time.monotonic()
        # who has asked meanwhile is not silent: what took long was somebody else's request
        asking = {descriptor for descriptor, _ in poller.poll(0)}
        for client, then_s in list(heard_s.items()):
            if client not in asking and time.monotonic() - then_s > silent_s:
                server.drop(client)
            if client not in server.clients:
                poller.unregister(client)
                del heard_s[client]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="orind-power-helper", description="Started by orind-power.socket.")
    parser.add_argument("--root", type=Path, default=Path("/"), help="of a simulated board (default /)")
    parser.add_argument("--state", type=Path, default=STATE, help=f"there while a daemon governs (default {STATE})")
    parser.add_argument("--group", default=GROUP, help=f"whose members may ask (default {GROUP})")
    options = parser.parse_args(arguments)
    try:
        group = grp.getgrnam(options.group).gr_gid
        server = ControlServer(SOCKET, fd=passed_socket(), admit=lambda sock: may_ask(sock, group))
    except (KeyError, ValueError) as error:
        print(f"orind-power-helper: {error}", file=sys.stderr)
        return Exit.UNAVAILABLE
    inbox = SignalInbox()
    try:
        serve(server, Privileged(options.root, options.state), IDLE_S, inbox=inbox)
    finally:
        server.close()
        inbox.close()
    return Exit.DONE


if __name__ == "__main__":
    sys.exit(main())
