"""What can go wrong at the edges of a process: one exception type per seam, each with a sentence for a user.

Raised by every module of `ipc`; the daemon turns a WireError into the outcome `rejected`, the others into a log line,
a fail-over or an exit code. Invariant: an exception of `ipc` says what was wrong *and* what to do about it.
"""

from __future__ import annotations


class IpcError(Exception):
    """Anything this package refuses; the text is one sentence fit for a user."""


class WireError(IpcError, ValueError):
    """A frame or a result that does not follow the wire format.

    reason: a short machine word (`REASONS` in wire.py). The text names the field and what to do.
    camera, seq, trigger, ts_ns: what could be understood before the refusal, so that the answer can still echo it.
    """

    def __init__(
        self,
        reason: str,
        text: str,
        *,
        camera: str | None = None,
        seq: int | None = None,
        trigger: str | None = None,
        ts_ns: int | None = None,
    ) -> None:
        super().__init__(text)
        self.reason = reason
        self.camera = camera
        self.seq = seq
        self.trigger = trigger
        self.ts_ns = ts_ns


class ChannelError(IpcError):
    """A datagram between our own processes that is truncated, foreign, too large or out of range."""


class SlotError(IpcError):
    """A slot used after it was recycled, given back twice, or outside the ring."""


class ResultAreaError(IpcError):
    """A result that was overwritten or lies outside its area."""


class StatsPageError(IpcError):
    """A stats page that could not be read consistently, or is not one."""


class ControlError(IpcError):
    """The control socket cannot be reached, answered too late, or refused the request."""


class EndpointError(IpcError):
    """An endpoint that is malformed, in use, or held by another instance."""


class ClientError(IpcError):
    """A publisher or subscriber that cannot do what was asked (nobody connected, too much unanswered)."""


class NobodyThere(ClientError):
    """Nobody takes frames at the endpoint."""


class ImageError(ClientError):
    """Pixels that cannot be sent as what they are said to be."""
