"""The native frame header: bytes from a camera in, a bounded and checked `Header` out; pure, knows no sockets.

Called by main for every frame (so it is written for microseconds) and by the client library, which builds the same
bytes. Invariant: nothing that came over a wire is believed before its length, type and range are checked, and whatever
is refused is refused as a WireError that names the field; no other exception leaves this module.

One message is `[camera][header][payload]`: camera UTF-8 (<= 64 bytes), header JSON (<= 4 KiB), payload pixels, JPEG or
tensor.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NoReturn

from .answer import OUTCOMES, Result, build_result, parse_result, result_topic
from .bounded_json import encode_object, parse_object
from .errors import WireError

__all__ = [
    "CLASSES", "CLOCKS", "DTYPE_BYTES", "ENCODINGS", "OUTCOMES", "PACKED_BYTES", "REASONS", "Header", "Result",
    "WireError", "build_header", "build_result", "check_payload", "parse_camera", "parse_header", "parse_result",
    "result_topic",
]

VERSION = 1
CAMERA_BYTES_MAX = 64
HEADER_BYTES_MAX = 4096
TRIGGER_CHARS_MAX = 128
SIDE_MAX = 16_384
PIXELS_MAX = 1 << 26
STRIDE_MAX = 4 * 3 * SIDE_MAX + 4096  # the widest row four times over: padding, or a window into a wider picture
INT_MAX = (1 << 63) - 1  # so that seq and ts_ns fit every consumer's signed 64 bits
TENSOR_BYTES_MAX = 1 << 30
TENSOR_DIMS_MAX = 6
DEADLINE_MS_MAX = 3_600_000.0

CLOCKS = ("monotonic", "realtime")
CLASSES = ("critical", "normal", "best_effort")
PACKED_BYTES = {"bgr8": 3, "rgb8": 3, "mono8": 1, "bayer_rggb8": 1}  # bytes per pixel of the one-plane encodings
ENCODINGS = ("bgr8", "rgb8", "mono8", "nv12", "i420", "bayer_rggb8", "jpeg", "tensor")
DTYPE_BYTES = {
    "uint8": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8, "float16": 2, "float32": 4, "float64": 8,
}
REASONS = (
    "parts", "bad_camera", "header_too_large", "header_not_json", "missing_field", "bad_field", "bad_version",
    "unsupported", "payload_length", "frame_too_large", "bad_result",
)


@dataclass(slots=True)
class Header:
    """One frame's checked header. Not frozen: that would cost main 2 us a frame; nobody writes to it after parsing.

    stride: bytes between rows of the first plane, filled in when the sender left it out; 0 for jpeg and tensor.
    width, height: pixels; 0 where a jpeg or tensor does not say. length: exact payload bytes, 0 = not fixed (jpeg).
    cls: the header's `class`, None where it names none: then the camera's own priority holds.
    clock: the clock of ts_ns (meaningless when ts_ns is None).
    """

    v: int
    seq: int
    trigger: str | None
    ts_ns: int | None
    clock: str
    encoding: str
    width: int
    height: int
    stride: int
    deadline_ms: float | None
    cls: str | None
    dtype: str
    shape: tuple[int, ...]
    length: int



def parse_camera(raw: bytes) -> str:
    """First part of a message -> camera name. Raises WireError `bad_camera`."""
    if not 0 < len(raw) <= CAMERA_BYTES_MAX:
        raise WireError("bad_camera", f"camera name is {len(raw)} bytes: use 1 to {CAMERA_BYTES_MAX} bytes of UTF-8")
    try:
        name = raw.decode()
    except UnicodeDecodeError:
        raise WireError("bad_camera", "camera name is not UTF-8: send the name as UTF-8 text") from None
    if not name.isprintable():
        raise WireError("bad_camera", "camera name holds control characters: use printable text")
    return name


def _show(value: object) -> str:
    """A hostile value, shortened for a message. Huge ints and deep lists are not written out: both can raise."""
    if type(value) is str:
        return repr(value[:50]) + ("..." if len(value) > 50 else "")
    if type(value) is int and value.bit_length() > 128:
        return "an integer of more than 128 bits"
    return repr(value) if value is None or type(value) in (int, float, bool) else f"a JSON {type(value).__name__}"


def _is_trigger(value: object) -> bool:
    return type(value) is str and 0 < len(value) <= TRIGGER_CHARS_MAX and value.isprintable()


def _fail(fields: dict[str, Any], name: str, rule: str, reason: str = "bad_field") -> NoReturn:
    """The slow path: say what is missing or wrong, with as much of the identity as holds."""
    seq, trigger, ts_ns = fields.get("seq"), fields.get("trigger"), fields.get("ts_ns")
    if name not in fields:
        reason, text = "missing_field", f"header lacks {name!r}: {rule}"
    else:
        text = f"header field {name!r} is {_show(fields[name])}: {rule}"
    raise WireError(
        reason,
        text,
        seq=seq if type(seq) is int and 0 <= seq <= INT_MAX else None,
        trigger=trigger if _is_trigger(trigger) else None,
        ts_ns=ts_ns if type(ts_ns) is int and 0 <= ts_ns <= INT_MAX else None,
    )


def parse_header(raw: bytes) -> Header:
    """Second part of a message (<= 4 KiB of JSON) -> Header. Raises WireError; unknown keys are ignored.

    `type(x) is int` rather than isinstance throughout: true and false are ints to Python, not to a camera.
    """
    fields = parse_object(raw, "header", HEADER_BYTES_MAX)
    get = fields.get
    v = get("v")
    if type(v) is not int or v != VERSION:
        _fail(fields, "v", f"this orind reads version {VERSION}", "bad_version")
    seq = get("seq")
    if type(seq) is not int or not 0 <= seq <= INT_MAX:
        _fail(fields, "seq", "send an integer from 0 to 2^63-1")
    trigger = get("trigger")
    if trigger is not None and not _is_trigger(trigger):
        _fail(fields, "trigger", f"send printable text of 1 to {TRIGGER_CHARS_MAX} characters, or leave it out")
    ts_ns = get("ts_ns")
    if ts_ns is not None and (type(ts_ns) is not int or not 0 <= ts_ns <= INT_MAX):
        _fail(fields, "ts_ns", "send nanoseconds as an integer from 0 to 2^63-1, or leave it out")
    clock = get("clock", "monotonic")
    if type(clock) is not str or clock not in CLOCKS:
        _fail(fields, "clock", "send one of " + ", ".join(CLOCKS))
    deadline_ms = get("deadline_ms")
    if deadline_ms is not None and (
        (type(deadline_ms) is not float and type(deadline_ms) is not int) or not 0 < deadline_ms <= DEADLINE_MS_MAX
    ):
        _fail(fields, "deadline_ms", f"send a number of milliseconds above 0 and up to {DEADLINE_MS_MAX:.0f}")
    cls = get("class")
    if (type(cls) is not str or cls not in CLASSES) and "class" in fields:
        _fail(fields, "class", "send one of " + ", ".join(CLASSES))
    if "shm" in fields:
        _fail(fields, "shm", "shared-memory frames are reserved: send the payload as the third part", "unsupported")
    encoding = get("encoding")
    if type(encoding) is not str or encoding not in ENCODINGS:
        _fail(fields, "encoding", "send one of " + ", ".join(ENCODINGS))
    width, height, stride = get("width", 0), get("height", 0), get("stride", 0)
    least = 0 if encoding == "jpeg" or encoding == "tensor" else 1
    if type(width) is not int or not least <= width <= SIDE_MAX:
        _fail(fields, "width", f"send pixels as an integer from 1 to {SIDE_MAX}")
    if type(height) is not int or not least <= height <= SIDE_MAX:
        _fail(fields, "height", f"send pixels as an integer from 1 to {SIDE_MAX}")
    if type(stride) is not int or not 0 <= stride <= STRIDE_MAX:
        _fail(fields, "stride", f"send bytes between rows as an integer up to {STRIDE_MAX}, or leave it out")
    if encoding == "tensor":
        dtype, shape, length = _tensor(fields)
        return Header(
            VERSION, seq, trigger, ts_ns, clock, encoding, width, height, 0, deadline_ms, cls, dtype, shape, length
        )
    if width * height > PIXELS_MAX:
        _fail(fields, "height", f"a picture has at most {PIXELS_MAX} pixels, this one {width * height}")
    if encoding == "jpeg":
        stride = length = 0
    else:
        per_pixel = PACKED_BYTES.get(encoding)
        if per_pixel is not None:
            least, rows = width * per_pixel, height
        elif encoding == "nv12":  # U and V interleaved, one pair for 2x2 pixels, in rows as long as the luma's
            least, rows = width + (width & 1), height + (height + 1) // 2
        else:
            least, rows = width, height
        if stride == 0:
            stride = least
        elif not least <= stride <= 4 * least + 4096:
            _fail(fields, "stride", f"{encoding} of width {width} needs {least} to {4 * least + 4096}, or leave it out")
        length = stride * rows
        if encoding == "i420":
            if stride != width:
                _fail(fields, "stride", f"the planes of i420 are tight: send {width}, or leave it out")
            length += 2 * ((width + 1) // 2) * ((height + 1) // 2)
    return Header(
        VERSION, seq, trigger, ts_ns, clock, encoding, width, height, stride, deadline_ms, cls, "uint8", (), length
    )


def _tensor(fields: dict[str, Any]) -> tuple[str, tuple[int, ...], int]:
    dtype, shape = fields.get("dtype"), fields.get("shape")
    if type(dtype) is not str or dtype not in DTYPE_BYTES:
        _fail(fields, "dtype", "a tensor needs one of " + ", ".join(DTYPE_BYTES))
    rule = f"a tensor needs 1 to {TENSOR_DIMS_MAX} positive integers, in all at most {TENSOR_BYTES_MAX} bytes"
    if type(shape) is not list or not 1 <= len(shape) <= TENSOR_DIMS_MAX:
        _fail(fields, "shape", rule)
    length = DTYPE_BYTES[dtype]
    for side in shape:
        if type(side) is not int or not 1 <= side <= TENSOR_BYTES_MAX:
            _fail(fields, "shape", rule)
        length *= side
    if length > TENSOR_BYTES_MAX:
        _fail(fields, "shape", rule)
    return dtype, tuple(shape), length


def check_payload(header: Header, n: int, slot_bytes: int) -> None:
    """Hold the payload's length n against header and slot. Raises WireError `frame_too_large`, `payload_length`."""
    if n == header.length and 0 < n <= slot_bytes:
        return
    known = {"seq": header.seq, "trigger": header.trigger, "ts_ns": header.ts_ns}
    if n > slot_bytes:
        text = f"payload is {n} bytes, a frame slot holds {slot_bytes}: send smaller frames or raise slots.bytes"
        raise WireError("frame_too_large", text, **known)  # type: ignore[arg-type]
    if header.length == 0 and n > 0:
        return
    if header.encoding == "jpeg":
        text = "payload of a jpeg frame is empty: send the file's bytes"
    elif header.encoding == "tensor":
        text = f"payload is {n} bytes, {header.dtype} of shape {list(header.shape)} needs {header.length}"
    else:
        text = (
            f"payload is {n} bytes, {header.encoding} {header.width}x{header.height} with stride {header.stride} "
            f"needs {header.length}: correct width, height, stride or encoding"
        )
    raise WireError("payload_length", text, **known)  # type: ignore[arg-type]


def build_header(
    *,
    seq: int,
    encoding: str,
    width: int = 0,
    height: int = 0,
    stride: int = 0,
    trigger: str | None = None,
    ts_ns: int | None = None,
    clock: str = "monotonic",
    deadline_ms: float | None = None,
    cls: str | None = None,
    dtype: str = "",
    shape: Iterable[int] = (),
) -> bytes:
    """The header's bytes, checked by parse_header before they leave. Raises WireError. Zeros and None are left out."""
    fields: dict[str, Any] = {"v": VERSION, "seq": seq, "encoding": encoding}
    for name, value in (("width", width), ("height", height), ("stride", stride), ("dtype", dtype)):
        if value:
            fields[name] = value
    for name, given in (("trigger", trigger), ("ts_ns", ts_ns), ("deadline_ms", deadline_ms), ("class", cls)):
        if given is not None:
            fields[name] = given
    if ts_ns is not None:
        fields["clock"] = clock
    if sides := [int(side) for side in shape]:
        fields["shape"] = sides
    try:
        raw = encode_object(fields)
    except (ValueError, TypeError) as error:
        raise WireError("bad_field", f"header cannot be written as JSON ({error}): use plain finite numbers") from None
    parse_header(raw)
    return raw
