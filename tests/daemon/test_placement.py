"""What an engine tells of its steps: whole counts, names as far as a notice and a status have room."""

from __future__ import annotations

import json

from orind.daemon.placement import ALL_MODELS_BYTES_MAX, from_text, in_words, listed, to_text
from orind.daemon.sections import MODELS_MAX
from orind.ipc.message_text import TEXT_BYTES_MAX
from orind.kernels.placement import Placement


def test_everything_is_told_where_there_is_room() -> None:
    text = to_text(3, Placement(9, (("a", "MaxPool"), ("b", "Unary"), ("c", "MaxPool")), 2), 1)
    index, told = from_text(text)
    assert index == 3
    assert in_words(told) == "3 of 9 steps run on the CPU (2 MaxPool, 1 Unary), 2 GPU segments"
    assert listed(told) == ["MaxPool: a, c", "Unary: b"]


def test_no_step_on_the_cpu() -> None:
    told = from_text(to_text(0, Placement(9, (), 1), 1))[1]
    assert in_words(told) == "0 of 9 steps run on the CPU, 1 GPU segment" and listed(told) == []


def test_names_are_cut_at_the_bound_and_counts_are_not() -> None:
    steps = tuple((f"{'é' * 300}{n}", f"Kind{n % 40}") for n in range(4000))
    for models in (1, MODELS_MAX):
        text = to_text(0, Placement(5000, steps, 7), models)
        assert len(text) <= TEXT_BYTES_MAX and len(text) * models <= ALL_MODELS_BYTES_MAX
        told = from_text(text)[1]
        assert (told["cpu_steps"], told["steps"], told["gpu_segments"]) == (4000, 5000, 7)
        assert sum(entry["count"] for entry in told["on_cpu"].values()) == 4000
        assert "and 100 more" in listed(told)[0]


def test_a_name_is_one_line_and_has_a_bound() -> None:
    (entry,) = from_text(to_text(0, Placement(1, (("a\nb" + "x" * 999, "MaxPool"),), 0), 1))[1]["on_cpu"].values()
    assert entry["names"][0].startswith("a bx") and len(json.dumps(entry["names"])) < 250
