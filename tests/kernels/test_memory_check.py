"""The memory checks find nothing in sound programs of every form, and name step and tensor in unsound ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from compiled import fill, fp32, int8
from forms import recent_yolo, segmenter, vit, yolox
from models import Net, detector_onnx, random_net
from test_half import fp16

from orind.kernels.cpu import executor
from orind.kernels.cpu import memory_check as mc
from orind.kernels.cpu.executor import ProgramRunner
from orind.kernels.ir.errors import MemoryFault
from orind.kernels.ir.lifetimes import lifetimes
from orind.kernels.ir.program import Program
from orind.kernels.ir.steps import Copy

SHIPPED = Path(__file__).parents[2] / "configs" / "models"
Bound = tuple[ProgramRunner, dict[str, Any]]
SOUND: dict[str, Callable[[], Bound]] = {
    "detector": lambda: fp32(detector_onnx(64), 2), "detector int8": lambda: int8(detector_onnx(64), 2, frames=1),
    "blazeface": lambda: fp32(onnx.load(SHIPPED / "blazeface-back.onnx")),
    "blazeface fp16": lambda: fp16(onnx.load(SHIPPED / "blazeface-back.onnx")),
    "yolox": lambda: fp32(yolox(True), 2), "yolox int8": lambda: int8(yolox(False), 2, frames=1),
    "recent yolo": lambda: fp32(recent_yolo(), 2), "vit": lambda: fp32(vit(True), 2),
    "segmenter": lambda: fp32(segmenter(), 2), "segmenter int8": lambda: int8(segmenter(), frames=1)}


def frames_of(runner: ProgramRunner, seed: int = 1) -> Any:
    fill(runner, seed)
    return runner.input.copy()


@pytest.mark.parametrize("name", SOUND)
def test_forms(name: str) -> None:
    runner, constants = SOUND[name]()
    mc.check_memory(runner.program, constants, frames_of(runner))


def test_random_nets() -> None:
    for seed in range(0, 80, 4):
        for runner, constants in (fp32(random_net(seed)), int8(random_net(seed), 2, frames=1)):
            mc.check_memory(runner.program, constants, frames_of(runner))


def chain() -> Bound:
    """a -> b -> c -> sum of c and a: a lives over b and c, which no longer needs b's bytes."""
    net = Net((1, 3, 12, 12))
    a = net.op("Relu", net.conv(net.input, 16))
    c = net.op("MaxPool", net.op("Relu", net.conv(a, 16)), kernel_shape=[3, 3], strides=[1, 1], pads=[1] * 4)
    y = net.op("Add", net.op("AveragePool", c, kernel_shape=[3, 3], strides=[1, 1], pads=[1] * 4), a)
    return fp32(net.model([(net.conv(net.op("Relu", y), 4, 1), (1, 4, 12, 12))]))


def moved(program: Program, tensor: str, onto: str) -> Program:
    """One buffer in the place of another."""
    tensors = dict(program.tensors)
    tensors[tensor] = replace(tensors[tensor], offset=tensors[onto].offset)
    return replace(program, tensors=tensors)


@pytest.mark.parametrize("mode", ["versions", "separate", "poison 255", "poison 85"])
def test_a_buffer_in_the_place_of_a_living_one(mode: str) -> None:
    runner, constants = chain()
    frames = frames_of(runner)
    first, pool = runner.program.steps[0].writes()[0], runner.program.steps[2].writes()[0]
    total = runner.program.steps[4]
    program = moved(runner.program, pool, first)
    wanted = mc.sums(mc.separate(program), constants, frames)
    assert wanted == mc.sums(runner.program, constants, frames)
    with pytest.raises(MemoryFault) as fault:
        if mode == "versions":
            mc.check_versions(program, constants, frames)
        elif mode == "separate":
            mc.check_separate(program, constants, frames, wanted)
        else:
            mc.check_poison(program, constants, frames, wanted, int(mode.split()[1]))
    assert fault.value.step == total.name and f"step '{total.name}'" in str(fault.value)
    if mode == "versions":
        assert fault.value.tensor == first
        assert f"reads '{first}', but step 'MaxPool_4' has written '{pool}' there" in str(fault.value)
    else:
        assert f"in '{total.writes()[0]}'" in str(fault.value)


def test_a_residual_whose_place_is_taken_too_early() -> None:
    net = Net((1, 3, 12, 12))
    a = net.op("Relu", net.conv(net.input, 16))
    y = net.op("Relu", net.op("Add", net.conv(net.op("Relu", net.conv(a, 16)), 16), a))
    out = net.conv(net.op("Sub", y, a), 4, 1)
    runner, constants = fp32(net.model([(out, (1, 4, 12, 12))]))
    frames = frames_of(runner)
    step: Any = next(s for s in runner.program.steps if getattr(s, "residual", ""))
    program = moved(runner.program, step.y, step.residual)
    with pytest.raises(MemoryFault, match=f"'Sub_7' reads '{step.residual}', but step '{step.name}' has written"):
        mc.check_memory(program, constants, frames)


def test_a_part_that_nobody_writes() -> None:
    net = Net((1, 3, 8, 8))
    x = net.concat(net.input, net.conv(net.input, 8))
    runner, constants = fp32(net.model([(net.conv(x, 4), (1, 4, 8, 8))]))
    steps = tuple(step for step in runner.program.steps if not isinstance(step, Copy))
    assert len(steps) == len(runner.program.steps) - 1
    with pytest.raises(MemoryFault, match="of which a part was never written"):
        mc.check_memory(replace(runner.program, steps=steps), constants, frames_of(runner))


@pytest.mark.parametrize(("what", "message"), [
    ("writes beside", "writes byte .* of the arena, beside its tensor"),
    ("reads y before", "depends on memory that is dead or that nobody wrote"),
    ("keeps scratch", "depends on memory that is dead or that nobody wrote")])
def test_an_executor_that_breaks_the_rules(what: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    runner, constants = chain()
    frames = frames_of(runner)
    right = executor.FUNCTIONS["MaxPool"]

    def wrong(step: Any, at: Any, frame: int) -> Any:
        x, y = at.view(step.x, frame), at.view(step.y, frame)
        if what == "writes beside":
            return [*right(step, at, frame), partial(at.arena[at.tensor(step.x).offset:][:1].fill, 99)]
        if what == "reads y before":
            return [partial(np.minimum, y, np.float32(0), out=y), partial(np.maximum, x, y, out=y)]
        return [*right(step, at, frame), partial(np.copyto, y[0, 0], at.scratch("kept", (1,)))]
    monkeypatch.setitem(executor.FUNCTIONS, "MaxPool", wrong)
    with pytest.raises(MemoryFault, match=message) as fault:
        mc.check_memory(runner.program, constants, frames)
    assert fault.value.step == "MaxPool_4"


def test_sums_do_not_cover_what_a_step_has_not_written() -> None:
    """The same sums after another input: bytes that parts of a Concat have not reached yet are not counted."""
    net = Net((1, 3, 8, 8))
    x = net.concat(net.input, net.op("Relu", net.conv(net.input, 8)), net.input)
    runner, _ = fp32(net.model([(net.conv(x, 4), (1, 4, 8, 8))]))
    assert sum(isinstance(step, Copy) for step in runner.program.steps) == 2
    frames = frames_of(runner)
    first = [runner.sum_of(step) for step in runner.walk()]
    fill(runner, 2)
    runner.run()
    np.copyto(runner.input, frames)
    assert [runner.sum_of(step) for step in runner.walk()] == first


def test_separate_buffers_share_nothing() -> None:
    runner, _ = fp32(detector_onnx(64), 2)
    apart = mc.separate(runner.program)
    assert apart.arena_bytes > 3 * runner.program.arena_bytes
    offsets = {t.buffer: t.offset for t in apart.tensors.values()}
    lives = sorted(lifetimes(apart).values(), key=lambda v: offsets[v.name])
    assert all(offsets[a.name] + a.nbytes <= offsets[b.name] for a, b in pairwise(lives))
