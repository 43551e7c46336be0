"""Which tile a convolution gets and into how many parts K is split, judged by hand from the two bounds."""

from __future__ import annotations

import pytest

from orind.kernels.cuda.convolution import TILES, Tile
from orind.kernels.cuda.launches import choose_tile

# Clocks of a wave over the SMs for each byte of K: the larger of bm * bn / 2048 and (bm + bn) / 32:
# 128x128: 8   128x64: 6   64x128: 6   128x32: 5   64x64: 4   64x32: 3   32x64, in steps of 128 bytes: 3
LARGE, SMALL, FLAT = Tile(128, 128, 64, 64, 64, 3), Tile(64, 32, 64, 32, 32, 4), Tile(32, 64, 128, 32, 32, 3)
CASES = {
    # 128 blocks, 16 waves of 8; 256 of 128x64, 32 of 6; 512 of 64x64, 64 of 4. Every SM is busy: nothing is split
    "a large image": ((128 * 128, 128, 1, 9 * 128, 8), (LARGE, 1)),
    # two blocks of 64x32 or of 32x64 in one wave of 3 clocks: the first in order. 36 steps, 2 blocks for 8 SMs
    "few pixels, long K": ((64, 64, 1, 9 * 512, 8), (FLAT, 4)),
    # eight blocks for 16 SMs: two parts, though there are steps for four
    "as many parts as there are idle SMs": ((256, 64, 1, 9 * 256, 16), (FLAT, 2)),
    # one block for 64 SMs, 9 steps: four each at least
    "as many parts as there are steps for": ((9, 64, 1, 9 * 128, 64), (FLAT, 2)),
    # one block, two steps
    "K too short to split": ((16, 32, 1, 256, 8), (FLAT, 1)),
    # K takes 64 bytes of one tile, and 128 of the other
    "a K that fills half a step": ((64, 16, 1, 16, 8), (SMALL, 1)),
    # four groups, a block each: 3 * 192 clocks, against 3 * 256
    "groups": ((64, 16, 4, 9 * 16, 8), (SMALL, 1)),
}


@pytest.mark.parametrize("case", CASES)
def test_the_tile_and_the_parts_of_k(case: str) -> None:
    given, right = CASES[case]
    assert right[0] in TILES and choose_tile(*given) == right
