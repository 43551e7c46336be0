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

from .regular_file import FileRefused, read_regular
from .spec import KEYS_OF_KIND, DecoderSpec, InputSpec, ModelSpec, SpecError
from .yaml_lines import LinedYaml, YamlProblem

MAX_FILE_BYTES = 4 << 20  # 65,536 labels of 60 bytes
MAX_MISTAKES = 50
_FRACTION = re.compile(r"-?[0-9]{1,9}(\.[0-9]{1,9})? */ *[0-9]{1,9}(\.[0-9]{1,9})?")


def read_spec(path: Path) -> ModelSpec:
    """The spec in the YAML file `path`. Raises SpecError with one line a mistake: `file:line: key: what is wrong`."""
    document = _read_document(path)
    try:
        model = _Model.model_validate(document.value)
    except ValidationError as error:
        items = error.errors(include_url=False)
        lines = [_line(document, item["loc"], _text(item)) for item in items[:MAX_MISTAKES]]
        if len(items) > MAX_MISTAKES:
            lines.append(f"{path}: and {len(items) - MAX_MISTAKES} more")
        raise SpecError("\n".join(lines)) from error
    found: list[tuple[str, str]] = []
    try:
        spec = ModelSpec(**model.parts())
    except SpecError as error:  # ModelSpec knows what does not fit together; only here are the lines known
        found += error.found
    if all(key != "decoder.kind" for key, _ in found):
        found += _ignored(model.decoder)
    if found:
        raise SpecError("\n".join(_line(document, tuple(key.split(".")), text) for key, text in found), found)
    return spec


def _ignored(decoder: _Decoder) -> list[tuple[str, str]]:
    """Keys that were given, but that this kind of decoder does not read: whoever wrote them expects them to count."""
    known = KEYS_OF_KIND.get(decoder.kind, ())
    return [(f"decoder.{key}", f"has no meaning for kind {decoder.kind}; leave it out "
             f"(it has {', '.join(known) or 'no other keys'})")
            for key in type(decoder).model_fields if key in decoder.model_fields_set - {"kind", *known}]


def _read_document(path: Path) -> LinedYaml:
    try:
        after_key = False
        for token in yaml.scan(read_regular(path, MAX_FILE_BYTES), Loader=yaml.SafeLoader):
            line = token.start_mark.line + 1
            # aliases can be nested so that a few lines stand for more than any memory
            if isinstance(token, yaml.AliasToken):
                raise SpecError(f"{path}:{line}: aliases have no place in a spec")
            if after_key and not isinstance(token, yaml.ScalarToken):
                raise SpecError(f"{path}:{line}: a key must be a word")
            after_key = isinstance(token, yaml.KeyToken)
    except FileRefused as error:
        raise SpecError(f"{path}: {error}") from error
    except (yaml.YAMLError, UnicodeDecodeError):
        pass  # LinedYaml says it with the line
    try:
        return LinedYaml.read(path)
    except YamlProblem as error:
        raise SpecError(str(error)) from error
    except RecursionError as error:
        raise SpecError(f"{path}: not valid YAML: nested too deep") from error


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
    output: int = 0


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


def _line(document: LinedYaml, loc: tuple[int | str, ...], text: str) -> str:
    """`file:line: key: text`."""
    key = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc).removeprefix(".")
    return f"{document.path}:{document.line_of(loc)}: {key}: {text}"
