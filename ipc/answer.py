"""Results on the wire: `[res/<camera>][JSON][float32 rows]`, built by the daemon, read by clients.

`build_result` runs once per frame in main; `parse_result` in the client library. Invariant: a result names exactly one
outcome, and no number in its JSON is NaN or infinite: it is not built. (The engine checked the float32 rows.)
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .bounded_json import encode_object, parse_object
from .errors import WireError
from .outcomes import OUTCOMES as OUTCOMES

TOPIC_PREFIX = b"res/"
RESULT_JSON_BYTES_MAX = 1 << 20
RESULT_ROWS_BYTES_MAX = 1 << 28
ROW_WIDTH = 6  # x1, y1, x2, y2, score, class

assert sys.byteorder == "little", "float32 rows go out as they lie in memory; x86-64 and arm64 are both little-endian"


def result_topic(camera: str | None) -> bytes:
    """Topic of a camera's results; a frame whose camera could not be read is answered under `res/?`."""
    return TOPIC_PREFIX + (camera.encode("utf-8", "replace") if camera is not None else b"?")


@dataclass(slots=True)
class Result:
    """One answer. camera and seq are None only where the frame did not say them legibly.

    objects: [{label, score, box: [x1, y1, x2, y2]}] in source pixels; classes: [{label, score}].
    boxes: float32 (N, 6) x1, y1, x2, y2, score, class; tensor: float32 of any shape, for models without a decoder.
    latency_ms: stage -> milliseconds. raw: the JSON object as it came.
    rows_kept: False in the repeat of an answer whose float32 part was too large to be kept: it came once.
    held: of a `degraded` answer that is an older frame's result: {seq, trigger, age_ms} of that frame.
    """

    camera: str | None
    seq: int | None
    trigger: str | None
    ts_ns: int | None
    clock: str | None
    outcome: str
    reason: str | None
    repeated: bool = False
    model: str | None = None
    generation: int | None = None
    objects: list[dict[str, Any]] = field(default_factory=list)
    classes: list[dict[str, Any]] = field(default_factory=list)
    latency_ms: dict[str, float] = field(default_factory=dict)
    boxes: NDArray[np.float32] = field(default_factory=lambda: np.empty((0, ROW_WIDTH), np.float32))
    tensor: NDArray[np.float32] | None = None
    raw: dict[str, Any] = field(default_factory=dict)
    rows_kept: bool = True
    held: dict[str, Any] | None = None

    @property
    def ok(self) -> bool:
        return self.outcome == "ok"


def build_result(
    camera: str | None,
    seq: int | None,
    trigger: str | None,
    ts_ns: int | None,
    clock: str | None,
    outcome: str,
    reason: str | None = None,
    *,
    repeated: bool = False,
    model: str | None = None,
    generation: int | None = None,
    objects: Sequence[Mapping[str, Any]] | None = None,
    classes: Sequence[Mapping[str, Any]] | None = None,
    latency_ms: Mapping[str, float] | None = None,
    boxes: NDArray[np.float32] | None = None,
    tensor: NDArray[np.float32] | None = None,
    rows_kept: bool = True,
    held: Mapping[str, Any] | None = None,
) -> list[bytes]:
    """The two or three parts of a result.

    Raises ValueError for an unknown outcome, a number that is not finite, or a held result that would be called `ok`.

    rows_kept False: the same without its float32 part, and it says so (a tensor's `shape` goes with the tensor).
    """
    if outcome not in OUTCOMES:
        raise ValueError(f"outcome {outcome!r} is none of {', '.join(OUTCOMES)}")
    if held is not None and outcome != "degraded":
        raise ValueError(f"a held result is degraded, never {outcome}")
    fields: dict[str, Any] = {
        "v": 1, "camera": camera, "seq": seq, "trigger": trigger, "ts_ns": ts_ns, "clock": clock, "outcome": outcome,
        "reason": reason,
    }
    if model is not None:
        fields["model"] = model
    if generation is not None:
        fields["generation"] = generation
    if held is not None:
        fields["held"] = held
    if objects is not None:
        fields["objects"] = objects
    if classes is not None:
        fields["classes"] = classes
    if latency_ms is not None:
        fields["latency_ms"] = latency_ms
    rows = boxes if tensor is None else tensor
    if rows is not None and not rows_kept:
        rows, fields["rows_kept"] = None, False
    elif tensor is not None:
        fields["shape"] = list(tensor.shape)
    if repeated:
        fields["repeated"] = True  # last, where mark_repeated looks for it
    parts = [result_topic(camera), encode_object(fields)]
    if rows is not None:
        parts.append(np.ascontiguousarray(rows, np.float32).tobytes())
    return parts


def mark_repeated(parts: Sequence[bytes]) -> list[bytes]:
    """The same result again, marked `repeated`; works on the built bytes, so that an answer is kept once."""
    if b'"repeated":true' in parts[1][-16:]:
        return list(parts)
    return [parts[0], parts[1][:-1] + b',"repeated":true}', *parts[2:]]


def _bad(what: str) -> WireError:
    return WireError("bad_result", f"result {what}: is the sender an orind of this version?")


def parse_result(parts: Sequence[bytes]) -> Result:
    """Parts of a result -> Result. Raises WireError (`bad_result`, `header_not_json`, ...) and nothing else.

    The float32 part is a read-only view of its bytes: no copy.
    """
    if not 2 <= len(parts) <= 3 or not parts[0].startswith(TOPIC_PREFIX):
        raise _bad(f"has {len(parts)} parts or no topic {TOPIC_PREFIX.decode()}...")
    fields = parse_object(parts[1], "result", RESULT_JSON_BYTES_MAX)
    get = fields.get
    if get("v") != 1 or get("outcome") not in OUTCOMES:
        raise _bad(f"says version {str(get('v'))[:20]} and outcome {str(get('outcome'))[:20]!r}")
    for name, kind in (("camera", str), ("trigger", str), ("clock", str), ("reason", str), ("model", str),
                       ("seq", int), ("ts_ns", int), ("generation", int)):
        if get(name) is not None and type(get(name)) is not kind:
            raise _bad(f"field {name!r} is not {kind.__name__}")
    objects, classes, latency_ms = get("objects", []), get("classes", []), get("latency_ms", {})
    if not _is_list_of_objects(objects) or not _is_list_of_objects(classes):
        raise _bad("fields 'objects' and 'classes' are not lists of JSON objects")
    if type(latency_ms) is not dict or not all(type(value) in (int, float) for value in latency_ms.values()):
        raise _bad("field 'latency_ms' does not map stages to numbers")
    held = get("held")
    if held is not None and (type(held) is not dict or fields["outcome"] != "degraded"):
        raise _bad("field 'held' is not a JSON object of a degraded answer")
    result = Result(
        get("camera"), get("seq"), get("trigger"), get("ts_ns"), get("clock"), fields["outcome"], get("reason"),
        get("repeated") is True, get("model"), get("generation"), objects, classes, latency_ms, raw=fields,
        rows_kept=get("rows_kept") is not False, held=held,
    )
    if len(parts) == 3:
        _attach_rows(result, parts[2], get("shape"))
    return result


def _is_list_of_objects(value: object) -> bool:
    return type(value) is list and all(type(item) is dict for item in value)


def _attach_rows(result: Result, rows: bytes, shape: object) -> None:
    if len(rows) > RESULT_ROWS_BYTES_MAX or len(rows) % 4:
        raise _bad(f"rows are {len(rows)} bytes, which is no bounded number of float32")
    numbers: NDArray[np.float32] = np.frombuffer(rows, np.float32)
    if shape is None:
        if numbers.size % ROW_WIDTH:
            raise _bad(f"rows are {len(rows)} bytes, which is no number of float32 rows of {ROW_WIDTH}")
        result.boxes = numbers.reshape(-1, ROW_WIDTH)
        return
    if type(shape) is not list or len(shape) > 8:
        raise _bad("field 'shape' is not a short list of sizes")
    total = 1
    for side in shape:
        if type(side) is not int or not 0 <= side <= 1 << 30:
            raise _bad("field 'shape' is not a short list of sizes")
        total *= side
    if total != numbers.size:
        raise _bad(f"rows hold {numbers.size} numbers, its shape {total}")
    result.tensor = numbers.reshape(shape)
