"""Reads a spec from YAML, for the build only: the one module of kernels that knows yaml and pydantic.

Called by the command line's `build`. Invariant: a file is refused whole, with every mistake at once, each with file and
line, and the nearest key for a misspelt one.
"""

from __future__ import annotations

import difflib
import re
import reprlib
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from .spec import DecoderSpec, InputSpec, ModelSpec, SpecError

MAX_FILE_BYTES = 4 << 20  # 65,536 labels of 60 bytes
MAX_MISTAKES = 50
_FRACTION = re.compile(r"-?[0-9]{1,9}(\.[0-9]{1,9})? */ *[0-9]{1,9}(\.[0-9]{1,9})?")


def read_spec(path: Path) -> ModelSpec:
    """The spec in the YAML file `path`. Raises SpecError with one line a mistake: `file:line: key: what is wrong`."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise SpecError(f"{path}: cannot be read: {error.strerror}") from error
    if len(data) > MAX_FILE_BYTES:
        raise SpecError(f"{path}: larger than {MAX_FILE_BYTES} bytes, a spec is not that long")
    return parse_spec(data, str(path))


def parse_spec(data: bytes, where: str) -> ModelSpec:
    """As `read_spec`, from bytes; `where` is the name used in messages."""
    try:
        root = yaml.compose(data, Loader=yaml.SafeLoader)
        twice = _keys_given_twice(root)
        raw = yaml.load(data, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise SpecError(f"{where}:{line}: not YAML: {error.problem or error.context}") from error
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise SpecError(f"{where}: not YAML: {str(error).splitlines()[0]}") from error
    if twice:
        raise SpecError("\n".join(f"{where}:{line}: {key}: given twice" for key, line in twice))
    if not isinstance(raw, dict):
        raise SpecError(f"{where}:1: must be a mapping with the keys {', '.join(_Model.model_fields)}")
    try:
        read = _Model.model_validate(raw)
    except ValidationError as error:
        items = error.errors(include_url=False)
        lines = [_line(where, root, item["loc"], _text(item)) for item in items[:MAX_MISTAKES]]
        if len(items) > MAX_MISTAKES:
            lines.append(f"{where}: and {len(items) - MAX_MISTAKES} more")
        raise SpecError("\n".join(lines)) from error
    try:
        return ModelSpec(**read.parts())
    except SpecError as error:  # ModelSpec knows what does not fit together; only here are the lines known
        raise SpecError(
            "\n".join(_line(where, root, tuple(key.split(".")), text) for key, text in error.found), error.found
        ) from error


def _number(value: object) -> object:
    """A number may be written as a fraction, `1/255` or `1/127.5`, so that it is exact."""
    if isinstance(value, str) and _FRACTION.fullmatch(value):
        above, below = value.split("/")
        return float(Fraction(above.strip()) / Fraction(below.strip())) if Fraction(below.strip()) else value
    return value


def _as_list(value: object) -> object:
    return value if isinstance(value, list) else [value]


_Number = Annotated[float, BeforeValidator(_number)]
_Numbers = Annotated[list[_Number], BeforeValidator(_as_list)]
_Integers = Annotated[list[int], BeforeValidator(_as_list)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Input(_Strict):
    colour: str = "rgb"
    resize: str = "letterbox"
    matrix: str = "bt601"
    range: str = "limited"
    mean: _Numbers = [0.0]
    scale: _Numbers = [1.0 / 255.0]


class _Decoder(_Strict):
    kind: str = "none"
    score_threshold: _Number = 0.25
    iou_threshold: _Number = 0.45
    max_detections: int = 100
    class_agnostic: bool = False
    top_k: int = 5
    activation: str = "none"
    strides: _Integers = []
    anchors_per_cell: _Integers = []
    box_scale: _Number = 0.0


class _Model(_Strict):
    name: str
    task: str
    labels: list[str] = []
    batch: _Integers = [1]
    input: _Input | None = None
    decoder: _Decoder = _Decoder()

    def parts(self) -> dict[str, Any]:
        """The fields of a ModelSpec."""
        def frozen(values: dict[str, Any]) -> dict[str, Any]:
            return {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}

        parts = frozen(self.model_dump(exclude={"input", "decoder"}))
        parts["input"] = None if self.input is None else InputSpec(**frozen(self.input.model_dump()))
        parts["decoder"] = DecoderSpec(**frozen(self.decoder.model_dump()))
        return parts


_KEYS: dict[tuple[str, ...], list[str]] = {
    (): list(_Model.model_fields), ("input",): list(_Input.model_fields), ("decoder",): list(_Decoder.model_fields)}


def _text(item: Any) -> str:
    """One pydantic error as a sentence for the person who wrote the file."""
    kind, loc, given = item["type"], item["loc"], reprlib.repr(item["input"])
    if kind == "extra_forbidden":
        known = _KEYS.get(tuple(loc[:-1]), [])
        near = difflib.get_close_matches(str(loc[-1]), known, n=1, cutoff=0.5)
        return "unknown key" + (f", did you mean {near[0]}?" if near else f"; known here: {', '.join(known)}")
    if kind == "missing":
        return "is missing"
    if kind == "string_type":
        return f"must be text, not {given}" + (" (put it in quotes)" if isinstance(item["input"], bool | int) else "")
    wanted = {
        "int_type": "a whole number", "float_type": "a number or a fraction such as 1/255",
        "bool_type": "true or false", "list_type": "a list", "model_type": "a mapping",
    }.get(kind)
    return f"must be {wanted}, not {given}" if wanted else str(item["msg"])


def _line(where: str, root: yaml.Node | None, loc: tuple[int | str, ...], text: str) -> str:
    """`file:line: key: text`, the line being that of the deepest part of `loc` that stands in the file."""
    node, line, path = root, 1, ""
    for part in loc:
        path += f"[{part}]" if isinstance(part, int) else f"{'.' if path else ''}{part}"
        child: yaml.Node | None = None
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                if key.value == part:
                    child, line = value, key.start_mark.line + 1
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            child = node.value[part]
            line = child.start_mark.line + 1
        if child is not None:
            node = child
    return f"{where}:{line}: {path}: {text}"


def _keys_given_twice(root: yaml.Node | None) -> list[tuple[str, int]]:
    """YAML lets the last of two equal keys win silently; a spec does not."""
    found: list[tuple[str, int]] = []
    if isinstance(root, yaml.MappingNode):
        # two levels are all that a spec has; aliases below could be nested without end
        for level in (root, *(value for _, value in root.value if isinstance(value, yaml.MappingNode))):
            seen: set[str] = set()
            for key, _ in level.value:
                name = str(key.value)
                if name in seen:
                    found.append((name, key.start_mark.line + 1))
                seen.add(name)
    return found
