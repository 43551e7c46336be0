"""Programs: JSON round trip and refusals; arena offsets; channel map; what lowering packs."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from compiled import fill, fp32, imported
from models import Net, detector_onnx

from orind.kernels.cpu.executor import FUNCTIONS, ProgramRunner, function_of
from orind.kernels.ir.errors import ProgramError
from orind.kernels.ir.flat_steps import Unary
from orind.kernels.ir.lifetimes import Lifetime
from orind.kernels.ir.program import programs_from_text, programs_to_text
from orind.kernels.ir.steps import STEPS, ConvF32
from orind.kernels.passes.arena import place
from orind.kernels.passes.channel_map import map_channels
from orind.kernels.passes.layouts import assign_layouts
from orind.kernels.passes.packing import merged_groups
from orind.kernels.passes.pipeline import fuse, prepare


def data() -> dict[str, Any]:
    runner, _ = fp32(detector_onnx(32))
    return json.loads(json.dumps(runner.program.to_json()))  # type: ignore[no-any-return]


def test_text_round_trip_of_two_batches() -> None:
    programs = {n: fp32(detector_onnx(32), n)[0].program for n in (1, 3)}
    assert programs_from_text(programs_to_text(programs)) == programs


def test_every_step_has_a_function_of_its_name() -> None:
    assert set(FUNCTIONS) == set(STEPS)
    assert FUNCTIONS["ConvI8"].__name__ == "conv_i8" and FUNCTIONS["MaxPool"].__name__ == "max_pool"
    with pytest.raises(ProgramError, match="no function for the step Warp"):
        function_of("Warp")


@pytest.mark.parametrize("text", ["", "[]", "{\"one\": {}}", "{\"1\": 5}", "[" * 100_000, "{\"1\": {\"steps\": []}}"])
def test_text_that_is_no_program(text: str) -> None:
    with pytest.raises(ProgramError, match="the program of the plan"):
        programs_from_text(text)


def test_missing_constant_and_unknown_tail_function() -> None:
    runner, constants = fp32(detector_onnx(32))
    step = next(s for s in runner.program.steps if isinstance(s, ConvF32))
    with pytest.raises(ProgramError, match="lacks the tensor"):
        ProgramRunner(runner.program, {k: v for k, v in constants.items() if k != step.weight})
    steps = [replace(s, op="Fresnel") if isinstance(s, Unary) else s for s in runner.program.steps]
    with pytest.raises(ProgramError, match="does not know Fresnel"):
        ProgramRunner(replace(runner.program, steps=tuple(steps)), constants)


def test_lifetimes_that_overlap_never_share_bytes() -> None:
    rng = np.random.default_rng(0)
    for _ in range(30):
        lives = []
        for i in range(25):
            first = int(rng.integers(0, 30))
            lives.append(Lifetime(str(i), int(rng.integers(1, 5000)), first, first + int(rng.integers(0, 8))))
        offsets, total = place(lives)
        for a in lives:
            assert offsets[a.name] % 256 == 0 and offsets[a.name] + a.nbytes <= total
            for b in lives:
                if a.name < b.name and a.first <= b.last and b.first <= a.last:
                    x, y = offsets[a.name], offsets[b.name]
                    assert x + a.nbytes <= y or y + b.nbytes <= x


def test_channel_map_of_a_c2f_block() -> None:
    """Split halves and the concat are one buffer: nothing is copied, segments start at multiples of 16."""
    net = Net((1, 3, 8, 8))
    x = net.c2f(net.conv(net.input, 24))
    layouts = assign_layouts(fuse(prepare(imported(net.model([(net.conv(x, 2), (1, 2, 8, 8))])))))
    found = map_channels(layouts.graph, layouts.image_nodes, layouts.images, ["images"])
    concat = next(n for n in layouts.graph.nodes if n.op == "Concat")
    assert not found.copied and found.views[concat.output].sizes == (12, 12, 12)
    assert found.starts(concat.output) == [0, 16, 32, 48]
    a, b, m = (found.views[name] for name in concat.inputs)
    assert {a.root, b.root, m.root} == {concat.output} and (a.first, b.first, m.first) == (0, 1, 2)
    assert found.starts("images") == [0, 3]


def test_a_tensor_in_two_concats_is_copied_once() -> None:
    net = Net((1, 3, 8, 8))
    a, b = net.conv(net.input, 8), net.conv(net.input, 8)
    first = net.conv(net.concat(a, b), 4)
    net.channels[first] = 4
    second = net.conv(net.concat(b, net.input, first, first), 4)
    layouts = assign_layouts(fuse(prepare(imported(net.model([(second, (1, 4, 8, 8))])))))
    found = map_channels(layouts.graph, layouts.image_nodes, layouts.images, ["images"])
    assert {index for _, index in found.copied} == {0, 1, 3}


@pytest.mark.parametrize(("groups", "channels", "want"), [(2, 64, 2), (32, 64, 4), (4, 12, 1), (3, 48, 3), (8, 20, 1)])
def test_merged_groups(groups: int, channels: int, want: int) -> None:
    assert merged_groups(groups, channels) == want


def test_a_smaller_program_lives_in_less_memory() -> None:
    one, three = (fp32(detector_onnx(64), n)[0].program.arena_bytes for n in (1, 3))
    assert 2.5 * one < three < 3.5 * one


def test_nodes_of_one_name_are_told_apart() -> None:
    """Constants and checksums go by the node's name: also where a given name looks like one of ours."""
    model = detector_onnx(32, (4, 8, 8, 8))
    want, _ = fp32(model)
    for index, node in enumerate(model.graph.node):
        node.name = f"same#{index + 1}" if index % 3 == 1 else "same"
    got, _ = fp32(model)
    assert len({step.name for step in got.program.steps}) == len(want.program.steps)
    fill(want)
    got.input[...] = want.input
    assert np.array_equal(got.run()[0], want.run()[0])
