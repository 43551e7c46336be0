"""The convolution kernels on the virtual GPU: a pairwise matrix of instances, each on shapes out of a pool, in three
schedules. INT8 to the bit of the contract, float16 within its bound.
"""

from __future__ import annotations

import itertools
import random
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import convolution_cases as cases
import numpy as np
import pytest
from convolution_cases import POOL, Bench
from driver_calls import REAL, Cuda

from orind.kernels.cuda import build
from orind.kernels.cuda.convolution import ACTIVATIONS, TILES, Kernel, Tile, channel_order, pack

SCHEDULES: Mapping[str, Mapping[str, str]] = {
    "forward": {"ORDER": "forward", "COPIES": "eager"},
    "reverse": {"ORDER": "reverse", "COPIES": "deferred"},
    "random": {"ORDER": "random", "COPIES": "deferred", "SEED": "11"},
}
SHAPES = 8

Options = tuple[int, str, str, bool, bool, bool, str]


def options() -> Iterator[Options]:
    """Every instance that makes sense: tile, type, ending, windowed, split, twice, some activations."""
    for tile, kind, windowed, split, twice in itertools.product(
        range(len(TILES)), ("s8", "u8", "f16"), (True, False), (False, True), (False, True)
    ):
        endings = ("half", "real") if kind == "f16" else ("plain", "table", "residual", "table_residual", "real")
        activations = ("", "SiLU", "LeakyRelu") if kind == "f16" else ("",)
        for ending, activation in itertools.product(endings, activations):
            if not (twice and ending == "real"):
                yield tile, kind, ending, windowed, split, twice, activation


def pairs(instance: Options) -> set[tuple[int, object, int, object]]:
    return {(i, instance[i], j, instance[j]) for i, j in itertools.combinations(range(len(instance)), 2)}


def matrix(wanted: int) -> list[Kernel]:
    """Instances so that every two values that can meet do, then more, from a seed, up to `wanted`."""
    draw = random.Random(1)
    left = list(options())
    draw.shuffle(left)
    open_pairs = set().union(*map(pairs, left))
    chosen: list[Options] = []
    while open_pairs:
        best = max(left, key=lambda instance: len(pairs(instance) & open_pairs))
        open_pairs -= pairs(best)
        chosen.append(best)
        left.remove(best)
    chosen += left[: max(0, wanted - len(chosen))]
    return [
        Kernel(TILES[tile], kind, ending, windowed, split, twice, activation)
        for tile, kind, ending, windowed, split, twice, activation in chosen
    ]


MATRIX = matrix(160)


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of compiled kernels."""
    return tmp_path_factory.mktemp("cuda")


@pytest.fixture(scope="session")
def compiled(request: pytest.FixtureRequest, cache: Path) -> Iterator[Callable[[Kernel], object]]:
    """Waits until a kernel of the matrix is in `cache`. A thread compiles ahead of the tests; more would gain nothing,
    NVRTC compiles one kernel at a time in a process."""

    def compile_one(kernel: Kernel) -> object:
        return build.compile_source(kernel.source, kernel.defines(), "compute_87", cache)

    chosen = [item for item in request.session.items if getattr(item, "originalname", "") == test_matrix.__name__]
    with ThreadPoolExecutor(1) as pool:
        made: dict[Kernel, Future[object]] = {}
        for item in chosen:
            kernel = item.callspec.params["kernel"]  # type: ignore[attr-defined]
            made[kernel] = pool.submit(compile_one, kernel)
        yield lambda kernel: made[kernel].result()
        pool.shutdown(cancel_futures=True)  # a run that ends early


@pytest.fixture(scope="session")
def benches(library: Path, cache: Path) -> Callable[[str], Bench]:
    """A bench of each schedule, on an instance of the virtual GPU of its own, every check on; of a real GPU one."""
    made: dict[str, Bench] = {}

    def bench(schedule: str) -> Bench:
        if REAL:
            schedule = "its own"
        if REAL and not made:
            cuda = Cuda(library / "libcuda.so.1").initialise()
            cuda.create_context()
            made[schedule] = Bench(cuda, cache)
        if schedule not in made:
            copy = cache / f"libcuda.{schedule}.so.1"
            shutil.copy(library / "libcuda.so.1", copy)
            with pytest.MonkeyPatch.context() as patch:
                for name, value in SCHEDULES[schedule].items():
                    patch.setenv(f"VIRTUAL_GPU_{name}", value)
                cuda = Cuda(copy).initialise()
            cuda.create_context()
            made[schedule] = Bench(cuda, cache)
        return made[schedule]

    return bench


def numbers_of(kernel: Kernel) -> list[int]:
    """The shapes of the pool that this instance is tried with."""
    suited = [i for i, shape in enumerate(POOL) if cases.suits(shape, kernel)]
    return random.Random(kernel.name).sample(suited, min(SHAPES, len(suited)))


@pytest.mark.parametrize("kernel", MATRIX, ids=lambda kernel: kernel.name)
def test_matrix(benches: Callable[[str], Bench], compiled: Callable[[Kernel], object], kernel: Kernel) -> None:
    compiled(kernel)
    assert len(numbers_of(kernel)) >= 4
    for number in numbers_of(kernel):
        shape = POOL[number]
        given = cases.numbers(shape, kernel, number)
        right, bound = cases.reference(shape, kernel, given)
        for schedule in ("its own",) if REAL else SCHEDULES:
            found = benches(schedule).run(shape, kernel, given, cases.splits_of(shape, kernel))
            cases.check(found, right, bound, (schedule, shape))


def test_the_matrix_holds_every_pair_and_every_shape() -> None:
    assert len(MATRIX) == 160 and len({kernel.name for kernel in MATRIX}) == 160
    used: set[int] = set()
    for kernel in MATRIX:
        used |= set(numbers_of(kernel))
    assert used == set(range(len(POOL)))


@pytest.mark.parametrize("kind", ["s8", "f16"])
@pytest.mark.parametrize("short", [3, 11])
def test_a_float32_end_stores_the_channels_that_there_are(
    benches: Callable[[str], Bench], tmp_path: Path, kind: str, short: int
) -> None:
    kernel, shape = Kernel(TILES[4], kind, "real"), cases.Shape(2, 7, 5, 16, 16)
    given = cases.numbers(shape, kernel, 2)
    bench = Bench(benches("random").cuda, tmp_path)
    whole = bench.run(shape, kernel, given)
    bench.short = short
    assert np.array_equal(bench.run(shape, kernel, given), whole[..., :-short])


def test_an_overflow_of_float16_marks_its_frame(benches: Callable[[str], Bench]) -> None:
    kernel, shape = Kernel(TILES[2], "f16", "half"), cases.Shape(2, 4, 4, 16, 32)
    given = cases.numbers(shape, kernel, 3)
    given.x[1, 2, 2] = 60_000
    given.weight[1, 1] = 1
    bench = benches("forward")
    bench.run(shape, kernel, given)
    assert bench.overflow == [0, 1]


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_activation(benches: Callable[[str], Bench], activation: str) -> None:
    kernel, shape = Kernel(TILES[2], "f16", "real", activation=activation), cases.Shape(1, 9, 9, 32, 32)
    given = cases.numbers(shape, kernel, 5)
    given = replace(given, bias=np.linspace(-8, 8, 32, dtype=np.float32), low=-np.inf, high=np.inf)
    found = benches("forward").run(shape, kernel, given)
    cases.check(found, *cases.reference(shape, kernel, given), what=activation)


@pytest.mark.parametrize("kind", ["s8", "f16"])
def test_a_wrong_element_is_told(kind: str) -> None:
    kernel, shape = Kernel(TILES[2], kind, "real"), cases.Shape(1, 4, 4, 16, 32)
    right, bound = cases.reference(shape, kernel, cases.numbers(shape, kernel, 1))
    assert (bound == 0).all() == (kind == "s8")
    cases.check(right + 0.99 * bound, right, bound, "within the bound")
    for wrong in (np.nextafter(right + 1.01 * bound, np.inf), np.full_like(right, np.nan)):
        found = right.copy()
        found[0, 3, 2, 7] = wrong[0, 3, 2, 7]
        with pytest.raises(AssertionError, match=r"1 of 512 are wrong, first at \[0 3 2 7\]: said"):
            cases.check(found, right, bound, "said")


def channels_of_threads(wn: int, run: int) -> Sequence[list[int]]:
    """Channels that each thread of a quad ends with, by the layout of mma's accumulators."""
    order = channel_order(wn, run)
    return [[int(order[8 * j + 2 * t + e]) for j in range(wn // 8) for e in range(2)] for t in range(4)]


@pytest.mark.parametrize("tile", [TILES[0], TILES[2]], ids=str)
@pytest.mark.parametrize(("kind", "ending"), [("s8", "plain"), ("s8", "real"), ("f16", "half"), ("f16", "real")])
def test_what_the_threads_of_a_quad_store_at_once_lies_side_by_side(tile: Tile, kind: str, ending: str) -> None:
    run = Kernel(tile, kind, ending).run
    found = channels_of_threads(tile.wn, run)
    assert sorted(channel for thread in found for channel in thread) == list(range(tile.wn))
    for first in range(0, tile.owned, run):
        stored = [channel for thread in found for channel in thread[first : first + run]]
        assert stored == list(range(4 * first, 4 * first + 4 * run)), "in the order of the threads"


def test_packing_refuses_channels_that_do_not_suit_the_tile() -> None:
    vector = np.zeros(24, np.int32)
    with pytest.raises(ValueError, match="do not suit conv_s8_128x128x64"):
        pack(Kernel(TILES[0]), np.zeros((1, 1, 16, 24), np.int8), (vector,), 1, 8, 16, (1, 1))


def test_chunks_without_weights_are_left_out() -> None:
    weight = np.ones((3, 3, 64, 32), np.int8)
    weight[:, :, 16:48] = 0
    packed = pack(Kernel(TILES[2]), weight, (np.zeros(32, np.int32),), 1, 10, 64, (1, 1))
    assert packed.steps == 5  # 9 taps of 2 chunks in steps of 4
    assert packed.gather[1].tolist() == [48, 0] and packed.gather[2].tolist() == [64, 1]
