"""From raw message parts to a checked trigger: the first thing done to any message.

Called by `pipeline.py`. Pure but for the clock passed in. Invariant: whatever is wrong with a message ends as one
WireError with a reason; nothing else can come out, so nothing hostile reaches a batch.
"""

from __future__ import annotations

from ..ipc import wire
from ..ipc.clock import StampPolicy
from ..ipc.errors import WireError
from ..ipc.source import RawFrame
from .config import Config
from .quarantine import Quarantine
from .rate import TokenBucket
from .shares import Shares
from .trigger import RANKS, Trigger

IMAGE_ENCODINGS = ("bgr8", "rgb8", "mono8", "nv12", "jpeg")


class Intake:
    """The rules of one configuration. Rebuilt at a reload."""

    def __init__(
        self,
        config: Config,
        inputs: dict[str, tuple[str, tuple[int, ...]]],
        stamps: StampPolicy,
    ) -> None:
        """`inputs`: dtype and shape (with a batch axis of 1) that a model of task `tensor` takes, by model."""
        self._cameras = config.cameras
        self.cameras = frozenset(config.cameras)
        self.stamps = stamps
        self._inputs = inputs
        self._slot_bytes = config.slots.bytes
        self._jpeg = config.decode.workers > 0
        engine = config.engine  # such a frame costs two restarts
        self.quarantine = Quarantine(max(1, (engine.restart_budget - 1) // 2), int(engine.restart_window_s * 1e9))
        self._versions = {name: Shares(name, camera.model) for name, camera in config.cameras.items()}
        self._buckets = {name: TokenBucket(c.rate_limit_hz, c.rate_burst) for name, c in config.cameras.items()}

    def deadlines_ns(self) -> dict[str, int]:
        """The tightest deadline of each model's cameras; of a best-effort camera nothing is promised."""
        tightest: dict[str, int] = {}
        for camera in self._cameras.values():
            if camera.priority != "best_effort":
                for model in (name for name, share in camera.model.items() if share):
                    tightest[model] = min(int(camera.deadline_ms * 1e6), tightest.get(model, 1 << 62))
        return tightest

    def parse(self, raw: RawFrame, now_ns: int, same_host: bool) -> Trigger:
        """A message to a trigger. A monotonic stamp is only believed from the same host.

        Raises WireError. The trigger has identity, timing and pixel layout; no slot yet.
        """
        name = wire.parse_camera(raw.camera)
        length = raw.payload.nbytes
        try:
            if raw.parts != 3:
                raise WireError("parts", f"a frame has 3 parts (camera, header, payload), this message has {raw.parts}")
            header = wire.parse_header(raw.header)
            camera = self._cameras.get(name)
            if camera is None:
                known = ", ".join(list(self._cameras)[:8])
                text = f"camera '{name}' is not in the configuration (known: {known})"
                raise _refusal(header, "unknown_camera", text)
            wire.check_payload(header, length, self._slot_bytes)
            model = self._versions[name].version(header.seq)
            problem = self._misfit(model, header.encoding, header.dtype, header.shape)
            if problem:
                raise _refusal(header, "encoding", f"camera '{name}': {problem}")
        except WireError as error:
            error.camera = name
            raise
        stamp = self.stamps.stamp(header.ts_ns, header.clock, now_ns, same_host)
        budget_ms = camera.deadline_ms if header.deadline_ms is None else min(camera.deadline_ms, header.deadline_ms)
        rank = RANKS[camera.priority] if header.cls is None else max(RANKS[camera.priority], RANKS[header.cls])
        return Trigger(
            name, header.seq, header.trigger, header.ts_ns, stamp.clock, now_ns, stamp.capture_ns,
            stamp.capture_ns + int(budget_ms * 1e6), rank, model, header.encoding, header.width, header.height,
            header.stride, header.dtype, header.shape, length,
        )

    def refusal(self, camera: str, now_ns: int) -> tuple[str, str] | None:
        """(reason code, text) where the camera may send nothing now: in quarantine, or its token bucket is empty."""
        if problem := self.quarantine.problem(camera, now_ns):
            return "quarantine", problem
        if not self._buckets[camera].take(now_ns):
            return "rate_limit", "camera triggers above its rate_limit_hz"
        return None

    def readmit(self, frame: Trigger, now_ns: int) -> tuple[str, str] | None:
        """Route a waiting frame anew after a reload, to the same version where the camera's shares are the same.

        Returns (reason code, text) where it cannot be served any more.
        """
        camera = self._cameras.get(frame.camera)
        if camera is None:
            return "reconfigured", f"camera '{frame.camera}' is not in the new configuration"
        if problem := self.quarantine.problem(frame.camera, now_ns):
            return "quarantine", problem
        assert frame.seq is not None
        frame.model = self._versions[frame.camera].version(frame.seq)
        frame.deadline_ns = min(frame.deadline_ns, frame.capture_ns + int(camera.deadline_ms * 1e6))
        problem = self._misfit(frame.model, frame.encoding, frame.dtype, frame.shape)
        return ("reconfigured", problem) if problem else None

    def _misfit(self, model: str, encoding: str, dtype: str, shape: tuple[int, ...]) -> str:
        """Why a frame of this form cannot be given to this model, or ''."""
        expected = self._inputs.get(model)
        if expected is not None:
            if encoding != "tensor":
                return f"model '{model}' takes tensors, not {encoding}"
            if (dtype, shape) != expected:
                return f"model '{model}' takes {expected[0]} {list(expected[1])}, got {dtype} {list(shape)}"
            return ""
        if encoding == "jpeg" and not self._jpeg:
            return "JPEG is not served: decode.workers is 0"
        if encoding not in (*IMAGE_ENCODINGS, "yuv420", "yuv422", "yuv444", "gray"):
            return f"model '{model}' takes pictures as {', '.join(IMAGE_ENCODINGS)}, not {encoding}"
        return ""


def _refusal(header: wire.Header, reason: str, text: str) -> WireError:
    """With the identity, so that the sender can tell which of its frames this answers."""
    return WireError(reason, text, seq=header.seq, trigger=header.trigger, ts_ns=header.ts_ns)
