"""YAML that remembers its lines, and pydantic's complaints turned into `FILE:LINE: key: what to do`.

Used at build time for a model's spec and by the daemon's checker for its configuration; never by an engine.
Duplicate keys are refused: YAML itself would silently keep the last.
"""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

MAX_DIGITS = 639
"""Python can be set up to refuse longer whole numbers; it then says so without a line."""


class YamlProblem(Exception):
    """The file is not one YAML mapping. The text names file and line."""


@dataclass(frozen=True, slots=True)
class LinedYaml:
    """A parsed file: its value as plain Python data, and the node tree for looking up lines (1-based)."""

    path: Path
    value: dict[str, Any]
    root: yaml.Node

    @classmethod
    def read(cls, path: Path) -> LinedYaml:
        """Raises OSError, or YamlProblem for anything that is not one mapping with unique keys."""
        text = path.read_bytes()
        try:
            root = yaml.compose(text.decode(), Loader=yaml.SafeLoader)
        except UnicodeDecodeError as error:
            raise YamlProblem(f"{path}: not UTF-8 text (byte {error.start})") from None
        except RecursionError:
            raise YamlProblem(f"{path}: not valid YAML: nested too deep") from None
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            line = mark.line + 1 if mark is not None else 1
            problem = getattr(error, "problem", None) or str(error).splitlines()[0]
            raise YamlProblem(f"{path}:{line}: not valid YAML: {problem}") from None
        if not isinstance(root, yaml.MappingNode):
            raise YamlProblem(f"{path}:1: expected a table of `key: value` lines")
        _refuse_duplicates(root, path)
        loader = yaml.SafeLoader("")
        try:
            value = loader.construct_document(root)
        except (yaml.YAMLError, ValueError) as error:  # ValueError: a date such as 2024-13-45, which YAML recognises
            if (line := _endless_number(root)) is not None:
                raise YamlProblem(f"{path}:{line}: not valid YAML: a number of too many digits") from None
            raise YamlProblem(f"{path}: not valid YAML: {error}") from None
        finally:
            loader.dispose()
        return cls(path, value, root)

    def line_of(self, location: tuple[Any, ...]) -> int:
        """Line of the deepest part of a key path that exists in the file."""
        node: yaml.Node = self.root
        line = node.start_mark.line + 1
        for part in location:
            found = _child(node, part)
            if found is None:
                break
            line, node = found
        return line

    def line_of_text(self, dotted: str) -> int:
        """Line for a message that begins with a dotted key (`a.b.c: ...`)."""
        return self.line_of(tuple(_split_key(dotted)))


def _endless_number(node: yaml.Node) -> int | None:
    """The line of the first whole number below `node` that Python does not read."""
    if isinstance(node, yaml.ScalarNode):
        endless = node.tag.endswith(":int") and len(node.value) > MAX_DIGITS
        return node.start_mark.line + 1 if endless else None
    inside = (part for item in node.value for part in (item if isinstance(item, tuple) else (item,)))
    return next((line for part in inside if (line := _endless_number(part)) is not None), None)


def problems_of(error: ValidationError, document: LinedYaml, schema: type[BaseModel]) -> list[str]:
    """Every mistake that pydantic found, one line each, sorted by line; unknown keys get the nearest known one.

    A required key that is misspelt is one mistake: the unknown key's.
    """
    found: list[tuple[int, str]] = []
    items = error.errors()
    unknown = [item["loc"] for item in items if item["type"] == "extra_forbidden"]
    misspelt = {(*where[:-1], _nearest(where, schema)) for where in unknown}
    for item in items:
        if item["type"] == "missing" and item["loc"] in misspelt:
            continue
        location = tuple(p for p in item["loc"] if p != "[key]")
        if item["type"] == "value_error" and "\n" not in str(item["loc"]) and not location:
            for line in str(item["ctx"]["error"]).splitlines():
                found.append((document.line_of_text(line), line))
            continue
        key = ".".join(str(p) for p in location)
        found.append((document.line_of(location), f"{key}: {_explain(dict(item), location, schema)}"))
    return [f"{document.path}:{line}: {text}" for line, text in sorted(found)]


def _explain(item: dict[str, Any], location: tuple[Any, ...], schema: type[BaseModel]) -> str:
    if item["type"] == "extra_forbidden":
        near = _nearest(location, schema)
        known = ", ".join(_fields_at(schema, location[:-1]))
        return f"unknown key; did you mean '{near}'?" if near else f"unknown key (known: {known})"
    if item["type"] == "missing":
        return "required key is missing"
    if item["type"] == "value_error":
        return str(item["ctx"]["error"])
    if item["type"] in ("too_long", "too_short"):
        least, most = item["ctx"].get("min_length"), item["ctx"].get("max_length")
        bound = f"at least {least}" if item["type"] == "too_short" else f"at most {most}"
        return f"must have {bound} of them, has {len(item['input'])}"
    shown = repr(item["input"])
    return f"{item['msg'][0].lower()}{item['msg'][1:]}, got {shown if len(shown) <= 60 else shown[:57] + '...'}"


def _nearest(location: tuple[Any, ...], schema: type[BaseModel]) -> str:
    """The known key that an unknown one is most like, or ''."""
    near = difflib.get_close_matches(str(location[-1]), _fields_at(schema, location[:-1]), n=1, cutoff=0.5)
    return near[0] if near else ""


def _fields_at(schema: Any, location: tuple[Any, ...]) -> list[str]:
    """Names of the keys that the schema knows at a place of the document."""
    for part in location:
        schema = _strip_optional(schema)
        if isinstance(schema, type) and issubclass(schema, BaseModel):
            field = schema.model_fields.get(str(part))
            if field is None:
                return []
            schema = field.annotation
        elif typing.get_origin(schema) is dict or typing.get_origin(schema) is list:
            schema = typing.get_args(schema)[-1]
        else:
            return []
    schema = _strip_optional(schema)
    return list(schema.model_fields) if isinstance(schema, type) and issubclass(schema, BaseModel) else []


def _strip_optional(schema: Any) -> Any:
    if typing.get_origin(schema) in (typing.Union, types.UnionType):
        return next(a for a in typing.get_args(schema) if a is not type(None))
    return schema


def _refuse_duplicates(node: yaml.Node, path: Path, visited: set[int] | None = None) -> None:
    """`visited`: an aliased node is looked at once, or a few nested aliases would take for ever."""
    visited = set() if visited is None else visited
    if id(node) in visited:
        return
    visited.add(id(node))
    if isinstance(node, yaml.MappingNode):
        seen: dict[Hashable, int] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                raise YamlProblem(f"{path}:{line}: a key must be plain text")
            if key.value in seen:
                raise YamlProblem(f"{path}:{line}: duplicate key '{key.value}' (also in line {seen[key.value]})")
            seen[key.value] = line
            _refuse_duplicates(value, path, visited)
    elif isinstance(node, yaml.SequenceNode):
        for value in node.value:
            _refuse_duplicates(value, path, visited)


def _child(node: yaml.Node, part: Any) -> tuple[int, yaml.Node] | None:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if key.value == str(part):
                return key.start_mark.line + 1, value
    elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
        return node.value[part].start_mark.line + 1, node.value[part]
    return None


def _split_key(text: str) -> list[str | int]:
    dotted = text.split(":", 1)[0]
    return [int(p) if p.isdigit() else p for p in dotted.split(".")]
