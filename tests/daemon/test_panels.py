"""daemon/panels.py: the picture is one, its labels do not cover each other, and short things stay visible."""

from __future__ import annotations

import builtins
import io
import math
from typing import Any

import numpy as np
import pytest
from PIL import Image

from orind.daemon import panels
from orind.daemon.panels import CannotDraw, Level, Line, Mark, Panel, draw, mark_rows, spread, stretches


def test_a_picture_of_several_panels() -> None:
    at = [float(n) for n in range(3000)]
    watts = Line("board", at, [20 + 10 * math.sin(t / 50) for t in at])
    empty = Line("GPU", at, [None] * 3000, panels.ORANGE, ranged=False)
    picture = draw("A run", "simulated", 3000, [
        Panel("board power, W", [watts], [Level("budget", 25.0, half_band=1.5)]),
        Panel("clock, MHz", [empty], from_zero=True, least=(1300,))], [Mark(1500, "fan dead")])
    image = Image.open(io.BytesIO(picture))
    assert image.format == "PNG" and image.size == (1650, 730)
    pixels = np.asarray(image.convert("RGB")).reshape(-1, 3)
    assert (pixels == (0, 0x72, 0xB2)).all(axis=1).sum() > 500, "the line is drawn in its colour"


def test_labels_are_moved_apart_as_little_as_needed() -> None:
    assert spread([0.2, 0.8], 0.1) == [0.2, 0.8]
    assert spread([0.5, 0.5, 0.5], 0.1) == pytest.approx([0.4, 0.5, 0.6])
    assert spread([0.0, 0.01, 1.0], 0.1) == pytest.approx([0.0, 0.1, 1.0])
    many = spread([0.9, 0.95, 1.0, 1.0], 0.1)
    assert many == pytest.approx([0.7, 0.8, 0.9, 1.0])


def test_labels_of_marks_go_up_where_another_or_the_title_is_near() -> None:
    assert mark_rows([0.05, 0.5, 0.55, 0.58, 0.59, 0.9]) == [1, 0, 1, 2, 2, 0]


def test_a_long_series_keeps_its_extremes() -> None:
    at = [float(n) for n in range(10_000)]
    values: list[float | None] = [1.0] * 10_000
    values[7777], values[5] = 50.0, None
    middle, mean, low, high = stretches(at, values, 100)
    assert len(middle) == len(mean) == 100 and max(high) == 50.0 and min(low) == 1.0 and max(mean) == 1.49
    gap = stretches(at[:100], [None] * 100, 10)
    assert all(math.isnan(value) for row in gap[1:] for value in row)
    assert stretches([], []) == ([], [], [], []) and stretches([1.0], [2.0])[1] == [2.0]


def test_without_matplotlib_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = builtins.__import__

    def missing(name: str, *rest: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return plain(name, *rest)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(CannotDraw, match=r"pip install 'orind\[plot\]'"):
        draw("A run", "simulated", 1, [])
