"""YAML with line numbers: what is not one table is refused with its line; complaints name key, line and remedy."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import BaseModel, ConfigDict, ValidationError, field_validator, model_validator

from orind.kernels.yaml_lines import LinedYaml, YamlProblem, problems_of


def read(folder: Path, text: str | bytes) -> LinedYaml:
    path = folder / "f.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return LinedYaml.read(path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", ":1: expected a table"),
        ("- 1\n- 2\n", ":1: expected a table"),
        ("word", ":1: expected a table"),
        ("a: 1\nb: [1, 2\nc: 3\n", ":3: not valid YAML"),
        ("a: 1\n\tb: 2\n", ":2: not valid YAML"),
        ("a: 1\nb: 2\na: 3\n", ":3: duplicate key 'a' (also in line 1)"),
        ("a:\n  - {x: 1, x: 2}\n", ":2: duplicate key 'x' (also in line 2)"),
        ("? [1, 2]\n: 3\n", ":1: a key must be plain text"),
        ("a: \x00\n", "not valid YAML"),
        ("a: !!python/object:os.system x\n", "not valid YAML"),
        ("a: 2024-13-45\n", "month must be in 1..12"),
        ("a: !!int word\n", "not valid YAML"),
        ("a: " + "[" * 1200, "nested too deep"),
        (b"a: \xff\xfe\n", "not UTF-8 text (byte 3)"),
    ],
)
def test_what_is_no_table_is_refused_with_its_line(tmp_path: Path, text: str | bytes, said: str) -> None:
    with pytest.raises(YamlProblem) as caught:
        read(tmp_path, text)
    assert str(caught.value).startswith(str(tmp_path / "f.yaml")) and said in str(caught.value), str(caught.value)


def test_a_missing_file_is_an_oserror(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        LinedYaml.read(tmp_path / "none.yaml")


def test_nested_aliases_take_no_time(tmp_path: Path) -> None:
    text = "a0: &a0 [1]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}, *a{n - 1}]\n" for n in range(1, 40))
    assert len(read(tmp_path, text).value) == 40


TEXT = """\
name: one

items:
  - size: 1
    at: {x: 1}
  - size: 2
table:
  first.dotted: {size: 3}
7: seven
"""


def test_lines_of_key_paths(tmp_path: Path) -> None:
    document = read(tmp_path, TEXT)
    assert document.value["items"][1] == {"size": 2}
    lines = {(): 1, ("name",): 1, ("items",): 3, ("items", 0, "at", "x"): 5, ("items", 1): 6, ("items", 1, "size"): 6,
             ("items", 9): 3, ("items", 1, "none"): 6, ("table", "first.dotted"): 8, ("none",): 1, (7,): 9}
    assert {path: document.line_of(path) for path in lines} == lines
    assert document.line_of_text("items.1.size: too small") == 6 and document.line_of_text("no key at all") == 1


class Item(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    size: int = 0
    colour: str | None = None

    @field_validator("size")
    @classmethod
    def _small(cls, value: int) -> int:
        if value > 10:
            raise ValueError("must be at most 10")
        return value


class Schema(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    name: str
    items: list[Item] = []
    table: dict[str, Item] = {}
    single: Item | None = None

    @model_validator(mode="after")
    def _together(self) -> Schema:
        if self.name == "bad":
            raise ValueError("name: must not be bad\nitems.0.size: nor this")
        return self


def problems(folder: Path, text: str) -> list[str]:
    document = read(folder, text)
    with pytest.raises(ValidationError) as caught:
        Schema.model_validate(document.value)
    prefix = f"{document.path}:"
    found = problems_of(caught.value, document, Schema)
    assert all(line.startswith(prefix) for line in found)
    return [line.removeprefix(prefix) for line in found]


def test_every_complaint_with_line_key_and_remedy_in_order(tmp_path: Path) -> None:
    assert problems(tmp_path, "items:\n  - {siz: 1}\n  - {size: two, color: red}\nsingle: {colur: x}\nzzz: 1\n") == [
        "1: name: required key is missing",
        "2: items.0.siz: unknown key; did you mean 'size'?",
        "3: items.1.color: unknown key; did you mean 'colour'?",
        "3: items.1.size: input should be a valid integer, got 'two'",
        "4: single.colur: unknown key; did you mean 'colour'?",
        "5: zzz: unknown key (known: name, items, table, single)",
    ]


def test_keys_below_a_table_and_below_nothing_known(tmp_path: Path) -> None:
    assert problems(tmp_path, "name: x\ntable:\n  a: {siz: 1}\n  7: {size: 1}\n") == [
        "3: table.a.siz: unknown key; did you mean 'size'?",
        "4: table.7: input should be a valid string, got 7",
    ]


def test_a_rule_of_a_field_and_rules_of_the_whole(tmp_path: Path) -> None:
    assert problems(tmp_path, "name: x\nitems:\n- size: 11\n") == ["3: items.0.size: must be at most 10"]
    assert problems(tmp_path, "items:\n- size: 1\nname: bad\n") == [
        "2: items.0.size: nor this", "3: name: must not be bad",
    ]


def test_a_long_value_is_shortened(tmp_path: Path) -> None:
    (line,) = problems(tmp_path, f"name: [{'1, ' * 100}1]\n")
    assert len(line) < 120 and line.endswith("...")
