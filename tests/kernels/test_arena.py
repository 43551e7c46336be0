"""The arena: at most 1.15 times what must be alive at once, on shipped models and random nets; nothing overlaps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from compiled import fp32, int8
from models import Net, detector_onnx, random_net

from orind.kernels.ir.lifetimes import Lifetime, lifetimes
from orind.kernels.passes import arena, lowering
from orind.kernels.passes.arena import place

SHIPPED = Path(__file__).parents[2] / "configs" / "models"
ALIGN = 256


def judge(lives: Sequence[Lifetime], offsets: dict[str, int], total: int) -> float:
    """Total over the largest sum of live buffers; no two that live at once share a byte. Own arithmetic."""
    steps = np.arange(min(v.first for v in lives), max(v.last for v in lives) + 1)
    alive = np.zeros(len(steps), dtype=np.int64)
    for life in lives:
        alive[(steps >= life.first) & (steps <= life.last)] += (life.nbytes + ALIGN - 1) // ALIGN * ALIGN
        assert offsets[life.name] % ALIGN == 0 and offsets[life.name] + life.nbytes <= total
    for at, a in enumerate(lives):
        for b in lives[at + 1:]:
            if a.first <= b.last and b.first <= a.last:
                low, high = sorted((a, b), key=lambda v: offsets[v.name])
                assert offsets[low.name] + low.nbytes <= offsets[high.name], (a, b)
    return float(total / alive.max())


@pytest.fixture
def placed(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The ratios of all arenas that are laid out meanwhile."""
    ratios: list[float] = []

    def watched(lives: Sequence[Lifetime]) -> tuple[dict[str, int], int]:
        offsets, total = place(lives)
        ratios.append(judge(lives, offsets, total))
        return offsets, total
    monkeypatch.setattr(lowering, "place", watched)
    return ratios


@pytest.mark.parametrize("name", ["part-inspect", "blazeface-back"])
def test_shipped_models(name: str, placed: list[float]) -> None:
    model = onnx.load(SHIPPED / f"{name}.onnx")
    for batch in (1, 4):
        fp32(model, batch)
    int8(model, frames=1)
    assert len(placed) >= 4 and max(placed) <= 1.15


def test_random_nets_at_both_precisions(placed: list[float]) -> None:
    for seed in range(80):
        fp32(random_net(seed), 1 + seed % 3)
    for seed in range(12):
        int8(random_net(seed), frames=1)
    int8(detector_onnx(64), batch=2, frames=1)
    assert len(placed) > 100 and max(placed) <= 1.15


def test_orders_that_size_alone_gets_wrong() -> None:
    """Seeded lifetimes of 12 to 40 buffers, harsher than networks: most come to the floor, none far above it."""
    ratios = []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        lives = []
        for index in range(int(rng.integers(12, 41))):
            first = int(rng.integers(0, 40))
            lives.append(Lifetime(str(index), int(rng.integers(1, 200)) * 100, first, first + int(rng.integers(0, 12))))
        offsets, total = place(lives)
        ratios.append(judge(lives, offsets, total))
        assert place(lives) == (offsets, total), "deterministic"
    assert max(ratios) <= 1.15 and np.mean(ratios) < 1.03


def test_sizes_are_rounded_and_an_empty_program_has_no_arena() -> None:
    assert place([]) == ({}, 0) and arena.floor([]) == 0
    assert place([Lifetime("a", 1, 0, 1), Lifetime("b", 257, 1, 2), Lifetime("c", 256, 2, 3)])[1] == 768


def test_a_convolution_takes_the_place_of_its_residual() -> None:
    """Only where nothing reads the residual later, and the convolution reads it nowhere else."""
    for what in ("dies", "lives", "is x"):
        net = Net((1, 3, 12, 12))
        a = net.op("Relu", net.conv(net.input, 16))
        b = a if what == "is x" else net.op("Relu", net.conv(net.conv(a, 16), 16))
        y = net.op("Relu", net.op("Add", net.conv(b, 16), a))
        out = net.conv(net.concat(y, a) if what == "lives" else y, 4, 1)
        for runner, _ in (fp32(net.model([(out, (1, 4, 12, 12))]), 2), int8(net.model([(out, (1, 4, 12, 12))]), 2)):
            step: Any = next(s for s in runner.program.steps if getattr(s, "residual", ""))
            old, new = (runner.program.tensors[name] for name in (step.residual, step.y))
            assert ((old.offset, old.start) == (new.offset, new.start)) is (what == "dies"), (what, step)
    small = fp32(onnx.load(SHIPPED / "blazeface-back.onnx"))[0].program
    largest = max(life.size for life in lifetimes(small).values())
    assert small.arena_bytes < 2.5 * largest                       # 3.4 without
