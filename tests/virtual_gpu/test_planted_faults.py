"""Faults planted in the convolution's sources are caught and named, in every schedule; and what the right sources are
held to: no bank conflict, few sectors, no spilled register."""

from __future__ import annotations

import math
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import convolution_cases as cases
import pytest
from convolution_cases import Bench, Edits, Shape
from driver_calls import Cuda

from orind.kernels.cuda import build
from orind.kernels.cuda.convolution import CHUNK, TILES, Kernel, Tile, grid

pytestmark = pytest.mark.virtual

Fresh = Callable[..., Cuda]
SCHEDULES = (
    {"ORDER": "forward", "COPIES": "eager"},
    {"ORDER": "reverse", "COPIES": "deferred"},
    {"ORDER": "random", "COPIES": "eager", "SEED": "5"},
)
WARP, SECTOR = 32, 32
FEWEST = WARP * CHUNK // SECTOR  # sectors of a request of 16 bytes a lane
KERNEL = Kernel(TILES[2])
SHAPE = Shape(1, 14, 14, 64, 64)

FAULTS: dict[str, tuple[Edits, str]] = {
    "missing barrier": (
        (("convolution.cuh", "__syncthreads();  // the stage is there", "// the stage is there"),),
        "race in shared memory|never written",  # a warp reads before another has written at all, or in between
    ),
    "wrong wait count": (
        (("convolution.cuh", "wait_copies<T::STAGES - 2>();", "wait_copies<T::STAGES - 1>();"),),
        "cp.async is still writing",
    ),
    "a stage too few": (
        (("convolution.cuh", "fill(step + T::STAGES - 1, writing);", "fill(step + T::STAGES - 1, reading);"),),
        "race in shared memory",
    ),
    "activations past the image": (
        (("convolution.cuh", "(h) < static_cast<uint32>(p.height)", "(h) <= static_cast<uint32>(p.height)"),),
        "past the end of allocation",
    ),
    "a store outside its tensor": (
        (("convolution.cuh", "if (pixel < p.pixels) finish", "if (pixel < p.pixels + 1) finish"),),
        "past the end of allocation",
    ),
    "a table that is not filled": (
        (("convolution_i8.cu", "i < 64; i += T::THREADS", "i < 63; i += T::THREADS"),),
        "never written",
    ),
    "a modifier that the machine does not know": (
        (("ptx.cuh", "L2::128B [%0], [%1], 16;", "L2::cache_hint [%0], [%1], 16, %1;"),),
        "cp.async.cg.shared.global.L2::cache_hint",
    ),
}


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: schedule["ORDER"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_named(fresh: Fresh, tmp_path: Path, fault: str, schedule: dict[str, str]) -> None:
    edits, said = FAULTS[fault]
    kernel = Kernel(TILES[2], ending="table") if "table" in fault else KERNEL
    cuda = fresh(**schedule)
    given = cases.numbers(SHAPE, kernel, 1)
    with pytest.raises(Exception):  # noqa: B017  a refused module and a failed launch end differently; the text is judged
        Bench(cuda, tmp_path, guard=0).run(SHAPE, kernel, given, edits=edits)
    assert re.search(said, cuda.last_fault()) and "PTX line" in cuda.last_fault()


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cuda")


def counted(cuda: Cuda, cache: Path, shape: Shape, kernel: Kernel, edits: Edits = ()) -> dict[str, int]:
    given = cases.numbers(shape, kernel, 1)
    found = Bench(cuda, cache).run(shape, kernel, given, edits=edits)
    if kernel.type != "f16":
        assert (found == cases.answer(shape, kernel, given)).all()
    return dict(cuda.counters()["counters"])


def slices(channels: int) -> Shape:
    """Both tensors are slices: as many channels beside them belong to others. Every chunk that is copied exists, and K
    is a multiple of every tile's step: a request that is partly zeros would make the average better than it is."""
    return Shape(1, 17, 19, channels, channels, (2, 4), pads=cases.NONE, x_slack=channels, y_slack=channels)


def most_times(bytes_of_a_pixel: int) -> float:
    """How many times the fewest sectors are allowed; half a sector cannot be had."""
    return 2.05 if bytes_of_a_pixel < SECTOR else 1.15


def gathered(counters: dict[str, int], shape: Shape, kernel: Kernel) -> float:
    """Sectors a request of activations, of the counters of one launch. Those of the weights, whose rows are contiguous,
    have the fewest, and are left out by their number."""
    tile = kernel.tile
    size = 2 if kernel.type == "f16" else 1
    blocks = math.prod(grid(tile, math.prod(shape.out), shape.cout, 1, 1))
    steps = math.prod(shape.kernel) * shape.cin * size // tile.bk
    activations, weights = (blocks * steps * rows * tile.bk // (WARP * CHUNK) for rows in (tile.bm, tile.bn))
    assert counters["async_copy_requests"] == activations + weights
    return (counters["async_copy_sectors"] - weights * FEWEST) / activations


@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize("kind", ["s8", "f16"])
def test_no_bank_conflict_and_few_sectors(fresh: Fresh, cache: Path, tile: Tile, kind: str) -> None:
    kernel = Kernel(tile, kind, "plain" if kind == "s8" else "half")
    for channels in (16, 32, 64, 128):
        shape, nbytes = slices(channels), channels * (1 if kind == "s8" else 2)
        counters = counted(fresh(COUNT="1"), cache, shape, kernel)
        assert counters["shared_load_wavefronts"] == counters["shared_load_least"] > 0
        assert counters["shared_store_wavefronts"] == counters["shared_store_least"] > 0
        assert counters["global_store_sectors"] <= most_times(nbytes) * math.prod(shape.out) * nbytes / SECTOR
        assert gathered(counters, shape, kernel) <= most_times(nbytes) * FEWEST


@pytest.mark.parametrize("tile", [TILES[0], TILES[2]], ids=str)  # warps of 64 channels, and of 32
@pytest.mark.parametrize("kind", ["s8", "f16"])
@pytest.mark.parametrize("channels", [16, 32, 128])
def test_few_sectors_of_the_float32_end(fresh: Fresh, cache: Path, tile: Tile, kind: str, channels: int) -> None:
    counters = counted(fresh(COUNT="1"), cache, slices(channels), Kernel(tile, kind, "real"))
    assert counters["global_store_sectors"] <= 1.15 * math.prod(slices(channels).out) * channels * 4 / SECTOR


@pytest.mark.parametrize("tile", [TILES[0], TILES[2]], ids=str)
@pytest.mark.parametrize("channels", [32, 128])
def test_few_sectors_of_a_residual(fresh: Fresh, cache: Path, tile: Tile, channels: int) -> None:
    unread = (("epilogue_f16.cuh", "if (p.residual != nullptr) {", "if (p.residual == nullptr) {"),)
    shape, half = slices(channels), Kernel(tile, "f16", "half")
    for size, kernel, without, edits in (
        (1, Kernel(tile, ending="residual"), Kernel(tile), ()),
        (2, half, half, unread),
    ):
        more = counted(fresh(COUNT="1"), cache, shape, kernel)
        less = counted(fresh(COUNT="1"), cache, shape, without, edits)
        read = more["global_load_sectors"] - less["global_load_sectors"]
        assert 1 <= read / (math.prod(shape.out) * channels * size / SECTOR) <= 1.15


def test_a_broken_swizzle_shows_in_the_count(fresh: Fresh, tmp_path: Path) -> None:
    edits = (("tile.cuh", "return row / (128 / BK) % CHUNKS;", "return 0;"),)
    counters = counted(fresh(COUNT="1"), tmp_path, SHAPE, KERNEL, edits)
    assert counters["shared_load_wavefronts"] >= 2 * counters["shared_load_least"]


@pytest.mark.parametrize("tile", TILES, ids=str)
def test_no_register_is_spilled(tmp_path: Path, ptxas: Path, tile: Tile) -> None:
    for kernel in (
        Kernel(tile, "s8", "table_residual", split=True),
        Kernel(tile, "s8", "real", windowed=False, split=True),
        Kernel(tile, "u8", "plain", twice=True),
        Kernel(tile, "f16", "half", split=True, activation="SiLU"),
        Kernel(tile, "f16", "real", windowed=False, activation="SiLU"),
    ):
        source = tmp_path / "kernel.ptx"
        source.write_bytes(
            build.compile_source(kernel.source, kernel.defines(), "compute_87", tmp_path / "cache").rstrip(b"\0")
        )
        said = subprocess.run(
            [ptxas, "-v", "-arch=sm_87", "-o", tmp_path / "kernel.cubin", source],
            capture_output=True,
            text=True,
            check=True,
        ).stderr
        spills = re.findall(r"(\d+) bytes spill", said)
        assert spills and set(spills) == {"0"}, f"{kernel.name}: {said}"
