"""Foreign texts: one line, bounded in letters and as JSON, and what was left out is said."""

from __future__ import annotations

import json

from orind.ipc.bounded_text import LIST_BYTES_MAX, bound_fields, bound_text, bound_texts


def test_a_text_becomes_one_printable_line() -> None:
    assert bound_text("a\nREADY=1\tb\x1b[31m\x00\u2028é") == "a READY=1 b [31m  é"
    assert bound_text("x" * 500) == "x" * 500
    assert bound_text("x" * 300_000) == "x" * 497 + "..."
    assert bound_text("abcdef", 5) == "ab..."


def test_a_list_is_bounded_in_number_and_as_json() -> None:
    assert bound_texts(["a", "b\n"]) == ["a", "b "]
    assert bound_texts(map(str, range(53)))[-2:] == ["49", "and 3 more"]
    wide = bound_texts(["\U0001f600" * 500] * 60)
    assert len(json.dumps(wide)) < LIST_BYTES_MAX + 100 and wide[-1] == f"and {60 - len(wide) + 1} more"
    assert bound_texts([]) == []


def test_a_tables_texts_are_bounded() -> None:
    fields = {"reason": "x" * 600, "faults": ["y\n"] * 60, "board_w": 1.5, "none": None}
    made = bound_fields(fields)
    assert len(made["reason"]) == 500 and made["faults"][-1] == "and 10 more"
    assert (made["board_w"], made["none"]) == (1.5, None)
