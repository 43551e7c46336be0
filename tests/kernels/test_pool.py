"""The allocator of an engine's reservation: random sequences, its rules, and every refusal."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from orind.kernels.memory.errors import PoolError, PoolExhausted
from orind.kernels.memory.extents import Extents
from orind.kernels.memory.pool import ALIGN, LARGE_ABOVE, MEDIUM_FROM, Block, Pool, SizeClass, class_of, size_for
from orind.kernels.memory.slab import SLAB_BYTES, Slab

MB = 1 << 20


def check(pool: Pool, live: list[Block]) -> None:
    """No overlap, everything inside, nothing lost: judged from the outside."""
    assert pool.blocks == sorted(live, key=lambda b: b.offset)
    at = 0
    for block in pool.blocks:
        assert at <= block.offset and block.offset % ALIGN == 0 and block.size >= max(block.nbytes, 1)
        at = block.offset + block.size
        assert block.in_reserve == (block.offset >= pool.size - pool.reserve)
    assert at <= pool.size
    assert pool.used + pool.free_bytes + pool.reserve - pool.reserve_used == pool.size
    assert pool.used == sum(b.size for b in live)
    assert pool.reserve_used == sum(b.size for b in live if b.in_reserve)
    assert pool.largest_free <= pool.free_bytes and 0 <= pool.fragmentation < 1


def sizes(rng: random.Random) -> int:
    return int(2 ** rng.uniform(0, 23)) if rng.random() < 0.9 else rng.choice((0, 1, MEDIUM_FROM, LARGE_ABOVE))


def test_random_sequences_never_overlap_lose_nothing_and_coalesce() -> None:
    met = Counter[str]()
    for seed in range(20):
        rng = random.Random(seed)
        pool, live = Pool(20 * MB, 4 * MB), list[Block]()
        for _ in range(500):
            if live and rng.random() < 0.45:
                pool.free(live.pop(rng.randrange(len(live))))
            else:
                try:
                    block = pool.allocate(sizes(rng), "somebody", rng.choice("abc"), 5)
                except PoolExhausted:
                    met["exhausted"] += 1
                else:
                    live.append(block)
                    met[block.kind.value] += 1
                    met["reserve"] += block.in_reserve
            check(pool, live)
        rng.shuffle(live)
        while live:
            pool.free(live.pop())
            check(pool, live)
        assert (pool.largest_free, pool.fragmentation, pool.reserve_used) == (16 * MB, 0.0, 0)
        assert pool.allocate(16 * MB, "all of it").offset == 0
    assert {"exhausted", "reserve", "small", "medium", "large"} <= set(met)


def test_classes_are_those_of_the_requirement() -> None:
    limits = {MEDIUM_FROM - 1: "small", MEDIUM_FROM: "medium", LARGE_ABOVE: "medium", LARGE_ABOVE + 1: "large"}
    assert {size: class_of(size).value for size in limits} == limits
    assert {kind.value for kind in SizeClass} == set(limits.values())


def test_blocks_carry_owner_and_age_and_take_what_they_need() -> None:
    pool = Pool(16 * MB)
    small = pool.allocate(1000, "table", now_ns=7)
    large = pool.allocate(3 * MB + 1, "weights", now_ns=9)
    assert (small.size, large.size) == (1024, 3 * MB + ALIGN), "small ones by powers of two, others to measure"
    assert [(b.owner, b.born_ns) for b in pool.blocks] == [("table", 7), ("weights", 9)]


def test_groups_grow_from_both_ends_so_that_one_that_goes_leaves_one_piece() -> None:
    pool, old = Pool(100 * MB), list[Block]()
    for generation in range(1, 20):
        new = [pool.allocate(9 * MB, "plan", str(generation)) for _ in range(4)]
        for block in old:
            pool.free(block)
        assert pool.fragmentation == 0.0
        old = new


def test_a_hole_is_filled_by_what_fits_it_best() -> None:
    pool = Pool(64 * MB)
    blocks = [pool.allocate(n * MB, "x") for n in (4, 1, 6, 1)]
    pool.free(blocks[0])
    pool.free(blocks[2])
    assert pool.allocate(4 * MB, "y").offset == blocks[0].offset
    assert pool.allocate(5 * MB, "z").offset == blocks[2].offset
    assert pool.fragmentation == pytest.approx(1 - 52 / 53)


def test_the_reserve_is_used_last_and_counted() -> None:
    pool = Pool(10 * MB, 4 * MB)
    pool.allocate(6 * MB, "plan")
    assert (pool.free_bytes, pool.fragmentation, pool.emergencies) == (0, 0.0, 0)
    small, large = pool.allocate(100, "table"), pool.allocate(3 * MB, "scratch")
    assert small.in_reserve and large.in_reserve and pool.emergencies == 2
    assert pool.reserve_used == 3 * MB + 256
    with pytest.raises(PoolExhausted, match=r"late asks for 1048576 bytes: of 10485760 bytes 0 are free.*1048320 of"):
        pool.allocate(MB, "late")
    for block in (large, small):
        pool.free(block)
    assert pool.reserve_used == 0 and pool.emergencies == 2


def test_a_slab_in_use_keeps_only_itself() -> None:
    pool = Pool(MB)
    first = [pool.allocate(256, "x") for _ in range(SLAB_BYTES // 256)]
    assert pool.used == SLAB_BYTES and pool.largest_free == MB - SLAB_BYTES
    second = pool.allocate(256, "x")
    assert second.offset == SLAB_BYTES
    for block in first:
        pool.free(block)
    assert pool.free_bytes == MB - 256 and pool.largest_free == MB - 2 * SLAB_BYTES


def test_freed_twice_or_elsewhere_is_refused() -> None:
    pool, other = Pool(MB), Pool(MB)
    for nbytes in (100, MEDIUM_FROM):
        block, foreign = pool.allocate(nbytes, "plan 3"), other.allocate(nbytes, "somebody")
        with pytest.raises(PoolError, match=r"somebody frees .* of another pool"):
            pool.free(foreign)
        pool.free(block)
        with pytest.raises(PoolError, match=r"plan 3 frees .* which it does not have: freed twice"):
            pool.free(block)
        again = pool.allocate(nbytes, "plan 4")
        with pytest.raises(PoolError, match="plan 3"):
            pool.free(block)
        pool.free(again)


def test_damaged_books_are_noticed() -> None:
    pool = Pool(MB)
    block = pool.allocate(MEDIUM_FROM, "x")
    pool._free.give(block.offset, block.size)
    with pytest.raises(PoolError, match="lie upon another block"):
        pool.allocate(MEDIUM_FROM, "y")
    extents = Extents(0, 100)
    extents.take(10, 20)
    for start, size in ((0, 20), (25, 80), (15, 5), (10, 0)):
        with pytest.raises(PoolError, match="are to be taken, but are not free"):
            extents.take(start, size)
    for start, size in ((5, 10), (25, 10), (50, 10), (10, 0), (95, 10)):
        with pytest.raises(PoolError, match="are given back, but are free or outside"):
            extents.give(start, size)
    with pytest.raises(PoolError, match="is not taken"):
        Slab(0).give(256)


@pytest.mark.parametrize(("size", "reserve"), [(100, 0), (1024, 100), (1024, 2048), (1024, -256)])
def test_sizes_that_make_no_pool(size: int, reserve: int) -> None:
    with pytest.raises(PoolError, match="multiples of 256"):
        Pool(size, reserve)


def test_a_negative_size_is_refused() -> None:
    with pytest.raises(PoolError, match="x asks for -1 bytes"):
        Pool(MB).allocate(-1, "x")


def test_the_size_for_known_blocks_is_exact() -> None:
    rng = random.Random(3)
    requests = [sizes(rng) for _ in range(60)]
    pool = Pool(size_for(requests))
    for nbytes in requests:
        pool.allocate(nbytes, "x")
    assert pool._free.total == 0
