"""An engine's one reservation on the CPU: known beforehand, holding all that is large, losing nothing."""

from __future__ import annotations

import gc
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from part_builds import SPEC

from orind.kernels.cpu.executor import CpuExecutor
from orind.kernels.cpu.workspace import Workspace
from orind.kernels.devices import CpuDevice
from orind.kernels.ir.errors import ProgramError
from orind.kernels.memory.errors import PoolExhausted
from orind.kernels.memory.reservation import HostReservation
from orind.kernels.model import FrameFault, Model, open_models
from orind.kernels.picture import Picture, PictureError
from orind.kernels.plan.file import PlanFile
from orind.kernels.pre.scratch import Scratch

MB = 1 << 20
SLOT = 64 << 10


def opened(*paths: Path, emergency: int = MB) -> tuple[CpuDevice, list[Model]]:
    device = CpuDevice()
    return device, open_models([PlanFile.open_path(path) for path in paths], device, SLOT, emergency)


def picture(seed: int, width: int = 90, height: int = 70) -> Picture:
    pixels = np.random.default_rng(seed).integers(0, 255, (height, width, 3), dtype=np.uint8)
    return Picture("rgb8", width, height, 3 * width, pixels.reshape(-1))


def rows(model: Model, *pictures: Picture) -> list[NDArray[np.float32]]:
    targets = [np.zeros((model.interface.rows_max, model.interface.row_width), np.float32) for _ in pictures]
    counts = model.run(list(pictures), targets)
    assert all(isinstance(count, int) for count in counts), counts
    return [t[:n] for t, n in zip(targets, counts, strict=True)]  # type: ignore[misc]


def test_two_plans_and_all_their_batch_sizes_lie_in_it(part_plan: Path) -> None:
    device, models = opened(part_plan, part_plan)
    memory = device.memory
    assert memory is not None
    pool = memory.pool
    for what in ("weights", "work memory", "batch 1", "batch 2"):
        owners = {block.owner for block in pool.blocks}
        assert owners >= {f"{SPEC.name} (1): {what}", f"{SPEC.name} (2): {what}"}, "one model's twice"
    assert pool.used + pool.free_bytes + pool.reserve == pool.size and pool.emergencies == 0
    assert pool.fragmentation == 0.0, "what was known beforehand fits to the byte"
    base = memory.array(pool.blocks[0]).__array_interface__["data"][0]
    for model in models:
        for executor in model._executors.values():
            arena = executor.runner.binding.arena.__array_interface__["data"][0]  # type: ignore[attr-defined]
            assert arena % 256 == 0 and base <= arena < base + pool.size
        model.golden()
    for model in models:
        model.close()
    assert pool.blocks == [] and pool.largest_free == pool.size - pool.reserve
    device.close()


def test_batch_sizes_that_share_work_memory_give_the_bits_of_those_that_do_not(part_plan: Path) -> None:
    device, (model,) = opened(part_plan)
    with PlanFile.open_path(part_plan) as plan:
        for n in (1, 2, 1, 2, 2, 1):
            frames = np.array(plan.tensors["golden.input"][:n])
            ours = model._executors[n]
            with CpuExecutor(plan, n) as alone:
                for executor in (ours, alone):
                    np.copyto(executor.input, frames)  # type: ignore[arg-type]
                for got, want in zip(ours.run(), alone.run(), strict=True):
                    assert np.array_equal(got, want)
    model.close()
    device.close()


def test_pictures_of_other_sizes_leave_no_gaps_and_nothing_behind(part_plan: Path) -> None:
    device, (model,) = opened(part_plan)
    assert device.memory is not None
    pool = device.memory.pool
    before, largest = pool.used, 0
    for seed, (width, height) in enumerate([(20, 16), (100, 40), (40, 100), (90, 70), (140, 150), (20, 16)] * 2):
        rows(model, picture(seed, width, height))
        largest = max(largest, pool.used)
        assert pool.fragmentation < 0.05
    assert before < pool.used == largest and pool.emergencies == 0
    changes = pool.changes
    assert rows(model, picture(1), picture(2))[0].tolist() == rows(model, picture(1))[0].tolist()
    assert pool.changes == changes, "sizes that were seen allocate nothing"
    model.close()
    assert pool.blocks == []


def test_a_picture_without_room_costs_its_frame_and_no_more(part_plan: Path) -> None:
    device, (model,) = opened(part_plan, emergency=0)
    assert device.memory is not None
    good = rows(model, picture(1))[0].tolist()
    hold = device.memory.take(device.memory.pool.largest_free, "test")
    wide = picture(3, 16_000, 4)
    (fault,) = model.run([wide], [np.zeros((model.interface.rows_max, model.interface.row_width), np.float32)])
    assert isinstance(fault, FrameFault) and "no room to prepare a picture like this: preprocessing:" in fault.text
    device.memory.give_back(hold)
    assert rows(model, picture(1))[0].tolist() == good
    model.close()


def test_the_reserve_carries_a_picture_that_finds_no_room_and_that_is_counted(part_plan: Path) -> None:
    device, (model,) = opened(part_plan, emergency=MB)
    assert device.memory is not None
    pool = device.memory.pool
    device.memory.take(pool.largest_free, "test")
    rows(model, picture(1))
    assert pool.emergencies > 0 and pool.reserve_used > 0


def test_memory_that_was_used_is_zeroed_before_it_is_used_again() -> None:
    memory = HostReservation(MB, 0)
    first = memory.take(100_000, "a")
    memory.array(first).fill(7)
    memory.give_back(first)
    assert not memory.array(memory.take(100_000, "b")).any()


def test_a_kernel_without_large_pages_is_no_hindrance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmap.MADV_HUGEPAGE", 12345)  # EINVAL, as where they are not compiled in
    memory = HostReservation(MB, 0)
    assert not memory.array(memory.take(MB, "a")).any()


def test_scratch_without_a_reservation_and_its_refusal() -> None:
    free = Scratch()
    free.tidy()
    assert free.array("x", (3, 5), np.int32).shape == (3, 5)
    free.close()
    tight = Scratch(HostReservation(64 << 10, 0))
    with pytest.raises(PictureError, match="no room to prepare a picture"):
        tight.array("x", (1 << 20,), np.uint8)


def test_a_settled_workspace_refuses_what_it_was_not_made_for() -> None:
    workspace = Workspace()
    workspace.scratch("a", (100,), np.uint8)
    kept: Any = workspace.fact("w", lambda: np.asfortranarray(np.arange(6.0).reshape(2, 3)))
    constant = np.arange(8.0)
    workspace.fact("view", lambda: constant[2:4])
    assert (workspace.weight_bytes([constant]), workspace.work_bytes()) == (256, 256)
    weights, work = np.zeros(256, np.uint8), np.zeros(256, np.uint8)
    workspace.settle([constant], weights, work)
    moved: Any = workspace.fact("w", lambda: 0)
    assert np.shares_memory(moved, weights) and np.array_equal(moved, kept) and moved.strides == kept.strides
    assert np.shares_memory(workspace.fact("view", lambda: constant), constant)
    assert np.shares_memory(workspace.scratch("a", (25,), np.float32), work)
    for ask in (
        lambda: workspace.scratch("a", (101,), np.uint8),
        lambda: workspace.frame((1,), (2, 2), np.dtype(np.float32)),
        lambda: workspace.fact("new", lambda: 1),
    ):
        with pytest.raises(ProgramError, match="did not need when its memory was measured"):
            ask()


def test_memory_that_is_not_there_is_refused_in_words() -> None:
    with pytest.raises(PoolExhausted, match="weights asks for 2097152 bytes"):
        HostReservation(MB, 0).take(2 * MB, "weights")
    code = (
        "import resource; from orind.kernels.memory.reservation import HostReservation\n"
        "from orind.kernels.ir.errors import ProgramError\n"
        f"resource.setrlimit(resource.RLIMIT_AS, ({1 << 30}, {1 << 30}))\n"
        f"try:\n    HostReservation({2 << 30}, 0)\nexcept ProgramError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "device cpu: 2048 MB of memory cannot be reserved: Cannot allocate memory\n"


def test_the_reserve_and_the_room_cost_nothing_until_they_are_written(part_plan: Path) -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

    gc.collect()
    before = resident()
    device, (model,) = opened(part_plan, emergency=512 * MB)
    model.golden()
    assert resident() - before < 64 * MB
    model.close()
    device.close()
