"""The model's spec: what a picture must become before the network, and what the network's numbers mean after it.

Written by people as YAML (kernels/spec_yaml.py reads that, at build time only), stored in the plan as JSON, read here
without pydantic or yaml. Called by the compiler, the Preprocessor and the decoders. Invariant: a ModelSpec that exists
has passed `problems()`; no later stage has to look at it with suspicion.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, get_args, get_type_hints

TASKS = ("detect", "classify", "map", "regress", "tensor")
TENSOR_TASKS = ("map", "regress", "tensor")
"""Tasks whose answer is the outputs themselves."""
COLOURS = ("rgb", "bgr", "mono")
RESIZES = ("letterbox", "stretch", "none")
MATRICES = ("bt601", "bt709")
RANGES = ("limited", "full")
KINDS = ("yolo", "blazeface", "topk", "map", "none")
ACTIVATIONS = ("none", "sigmoid", "softmax")
KINDS_OF_TASK = {"detect": ("yolo", "blazeface"), "classify": ("topk",), "map": ("map",), "regress": ("none",),
                 "tensor": ("none",)}
_BOXES = ("score_threshold", "iou_threshold", "max_detections", "class_agnostic")
KEYS_OF_KIND: Mapping[str, tuple[str, ...]] = {
    "yolo": _BOXES, "blazeface": (*_BOXES, "strides", "anchors_per_cell", "box_scale"), "topk": ("top_k", "activation"),
    "map": ("output", "activation", "score_threshold"), "none": ()}
"""What each kind of decoder reads besides its kind."""

MAX_LABELS = 65_536
MAX_DETECTIONS = 4_096
MAX_BATCH = 256
MAX_OUTPUTS = 64


class SpecError(ValueError):
    """The spec cannot be used; the text lists every problem, one a line.

    `found` has them as (key path, text) where they are known one by one.
    """

    def __init__(self, text: str, found: Sequence[tuple[str, str]] = ()) -> None:
        super().__init__(text)
        self.found = tuple(found)


@dataclass(frozen=True, slots=True)
class InputSpec:
    """How a picture becomes the input tensor: `value = (pixel - mean[c]) * scale[c]`, pixel in 0..255.

    `matrix` and `range` say how NV12 and I420 are coded (JPEG planes are full-range BT.601 by definition). `mean` and
    `scale` have one number for all channels, or one a channel in the order of `colour`.
    """

    colour: str = "rgb"
    resize: str = "letterbox"
    matrix: str = "bt601"
    range: str = "limited"
    mean: tuple[float, ...] = (0.0,)
    scale: tuple[float, ...] = (1.0 / 255.0,)

    @property
    def channels(self) -> int:
        """Logical channels of the input: 1 for mono, else 3."""
        return 1 if self.colour == "mono" else 3


@dataclass(frozen=True, slots=True)
class DecoderSpec:
    """What the outputs mean. Thresholds are on probabilities (0..1) and on intersection over union (0..1).

    yolo: one output (4 + classes, anchors) or its transpose: cx, cy, w, h in input pixels, then class probabilities.
    blazeface: box regressors and logits; anchors by `strides`, `anchors_per_cell`, `box_scale` (the input's side).
    topk: one vector, a value a class; `activation` turns it into a probability where the graph has not done so.
    map: output number `output` has a probability a pixel (after `activation`); a mask is where it is at least
    `score_threshold`. The outputs are the answer, as with kind none; the accuracy gate looks at the map.
    """

    kind: str = "none"
    score_threshold: float = 0.25
    iou_threshold: float = 0.45
    max_detections: int = 100
    class_agnostic: bool = False
    top_k: int = 5
    activation: str = "none"
    strides: tuple[int, ...] = ()
    anchors_per_cell: tuple[int, ...] = ()
    box_scale: float = 0.0
    output: int = 0


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """One model: name, task, labels by class index, batch sizes that the plan holds, input and decoder.

    `input` is None exactly for task `tensor`: there the payload's bytes are the input tensor. Tasks `map` and `regress`
    take pictures and answer with the outputs.
    Raises SpecError, naming every problem, if the parts do not fit together.
    """

    name: str
    task: str
    labels: tuple[str, ...] = ()
    batch: tuple[int, ...] = (1,)
    input: InputSpec | None = None
    decoder: DecoderSpec = DecoderSpec()

    def __post_init__(self) -> None:
        found = problems(self)
        if found:
            raise SpecError("\n".join(f"{key}: {text}" for key, text in found), found)

    @staticmethod
    def for_tensor(name: str, batch: tuple[int, ...] = (1,)) -> ModelSpec:
        """The spec of a model that is served as it is: tensor in, tensors out."""
        return ModelSpec(name=name, task="tensor", batch=batch)

    def to_json(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"), ensure_ascii=False, allow_nan=False)

    @staticmethod
    def from_json(text: str) -> ModelSpec:
        """Inverse of `to_json`; SpecError for anything else (unknown keys included: another version wrote it)."""
        try:
            raw = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise SpecError(f"spec is not JSON: {error}") from error
        spec = _read(ModelSpec, raw, "spec")
        assert isinstance(spec, ModelSpec)
        return spec


def problems(spec: ModelSpec) -> list[tuple[str, str]]:
    """Everything that does not fit together, as (key path, text); empty if the spec can be used."""
    found: list[tuple[str, str]] = []

    def need(good: bool, key: str, text: str) -> None:
        if not good:
            found.append((key, text))

    def one_of(value: str, allowed: tuple[str, ...], key: str) -> bool:
        need(value in allowed, key, f"must be one of {', '.join(allowed)}, not {value!r}")
        return value in allowed

    need(0 < len(spec.name) <= 64 and spec.name.isprintable() and "/" not in spec.name, "name",
         "must be 1 to 64 printable characters without '/'")
    need(0 < len(spec.batch) <= 16 and all(1 <= n <= MAX_BATCH for n in spec.batch)
         and list(spec.batch) == sorted(set(spec.batch)), "batch",
         f"must be 1 to 16 different sizes between 1 and {MAX_BATCH}, ascending")
    need(len(spec.labels) <= MAX_LABELS and all(label for label in spec.labels)
         and len(set(spec.labels)) == len(spec.labels), "labels",
         f"must be at most {MAX_LABELS} different texts, none empty")
    decoder = spec.decoder
    if one_of(spec.task, TASKS, "task") and one_of(decoder.kind, KINDS, "decoder.kind"):
        allowed = KINDS_OF_TASK[spec.task]
        need(decoder.kind in allowed, "decoder.kind",
             f"task {spec.task} needs {' or '.join(allowed)}, not {decoder.kind!r}")
        need(spec.task in TENSOR_TASKS or len(spec.labels) > 0, "labels",
             f"task {spec.task} needs a label for each class")
        need((spec.input is None) == (spec.task == "tensor"), "input",
             "task tensor has no preprocessing: leave it out" if spec.task == "tensor" else "is missing")
    if spec.input is not None:
        found.extend((f"input.{key}", text) for key, text in _input_problems(spec.input))
    need(0.0 <= decoder.score_threshold <= 1.0, "decoder.score_threshold", "must be between 0 and 1")
    need(0.0 <= decoder.iou_threshold <= 1.0, "decoder.iou_threshold", "must be between 0 and 1")
    need(1 <= decoder.max_detections <= MAX_DETECTIONS, "decoder.max_detections",
         f"must be between 1 and {MAX_DETECTIONS}")
    need(1 <= decoder.top_k <= MAX_LABELS, "decoder.top_k", f"must be between 1 and {MAX_LABELS}")
    if one_of(decoder.activation, ACTIVATIONS, "decoder.activation") and decoder.kind == "map":
        need(decoder.activation != "softmax", "decoder.activation", "of a map must be none or sigmoid, a pixel each")
    need(0 <= decoder.output < MAX_OUTPUTS, "decoder.output", f"must be between 0 and {MAX_OUTPUTS - 1}")
    if decoder.kind == "blazeface":
        found.extend((f"decoder.{key}", text) for key, text in _anchor_problems(decoder))
        need(len(spec.labels) <= 1, "labels", "blazeface has one class")
    return found


def _input_problems(spec: InputSpec) -> list[tuple[str, str]]:
    choices = (("colour", spec.colour, COLOURS), ("resize", spec.resize, RESIZES), ("matrix", spec.matrix, MATRICES),
               ("range", spec.range, RANGES))
    found = [(key, f"must be one of {', '.join(allowed)}, not {value!r}")
             for key, value, allowed in choices if value not in allowed]
    for key, values in (("mean", spec.mean), ("scale", spec.scale)):
        if len(values) not in (1, spec.channels):
            found.append((key, f"must be one number or {spec.channels}, not {len(values)}"))
        if not all(math.isfinite(value) for value in values):
            found.append((key, "must be finite"))
    if any(value == 0.0 for value in spec.scale):
        found.append(("scale", "must not be 0: every pixel would become the same value"))
    return found or _range_problems(spec)


def _range_problems(spec: InputSpec) -> list[tuple[str, str]]:
    """Where float32 does not hold what becomes of a pixel, or holds one value for all of them."""
    for index in range(max(len(spec.mean), len(spec.scale))):
        mean, scale = (values[index % len(values)] for values in (spec.mean, spec.scale))
        ends = _single((0.0 - mean) * scale), _single((255.0 - mean) * scale)
        key = "scale" if not 0.0 < abs(_single(255.0 * scale)) < math.inf else "mean"
        if not all(map(math.isfinite, ends)):
            return [(key, f"gives pixels values up to {max(map(abs, ((0.0 - mean) * scale, (255.0 - mean) * scale)))}: "
                          "more than float32 holds")]
        if ends[0] == ends[1]:
            return [(key, f"makes every pixel {ends[0]} in float32: give the model's own numbers")]
    return []


def _single(value: float) -> float:
    """As float32 has it."""
    try:
        return float(struct.unpack("f", struct.pack("f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def _anchor_problems(spec: DecoderSpec) -> list[tuple[str, str]]:
    found = []
    if not spec.strides or len(spec.strides) != len(spec.anchors_per_cell) or len(spec.strides) > 16:
        found.append(("strides", "blazeface needs strides and anchors_per_cell, one each a level (1 to 16 levels)"))
    if not all(1 <= stride <= 1024 for stride in spec.strides):
        found.append(("strides", "must be between 1 and 1024 pixels"))
    if not all(1 <= count <= 64 for count in spec.anchors_per_cell):
        found.append(("anchors_per_cell", "must be between 1 and 64"))
    if not 1.0 <= spec.box_scale <= 16384.0 or spec.box_scale != int(spec.box_scale):
        found.append(("box_scale", "must be the side of the model's input, 1 to 16384 whole pixels"))
    return found


def _read(kind: Any, raw: object, where: str) -> object:
    """A frozen dataclass from decoded JSON; strict on keys and types."""
    if not isinstance(raw, Mapping):
        raise SpecError(f"{where} must be an object, not {type(raw).__name__}")
    known = {field.name for field in fields(kind)}
    unknown = sorted(str(key) for key in raw if key not in known)
    if unknown:
        raise SpecError(f"{where} has unknown keys {', '.join(unknown)}: another version of orind wrote it, rebuild")
    hints = get_type_hints(kind)
    values = {key: _value(hints[key], value, f"{where}.{key}") for key, value in raw.items()}
    try:
        return kind(**values)
    except TypeError as error:
        raise SpecError(f"{where} is incomplete: {error}") from error


def _value(hint: Any, value: object, where: str) -> object:
    if hint in (InputSpec, DecoderSpec):
        return _read(hint, value, where)
    if hint == InputSpec | None:
        return None if value is None else _read(InputSpec, value, where)
    arguments = get_args(hint)
    if arguments:
        if not isinstance(value, list):
            raise SpecError(f"{where} must be a list")
        return tuple(_value(arguments[0], item, where) for item in value)
    if hint is float and type(value) in (int, float):
        try:
            return float(value)  # type: ignore[arg-type]
        except OverflowError:
            raise SpecError(f"{where} is a number of too many digits") from None
    if type(value) is not hint:
        raise SpecError(f"{where} must be of type {hint.__name__}, not {type(value).__name__}")
    return value
