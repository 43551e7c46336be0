"""Which version of a model a trigger goes to, where a camera's triggers are shared among versions (A/B).

Used by `intake.py`. Pure. Permuted blocks, as trials use them: consecutive sequence numbers form blocks as long as the
shares add up to, in lowest terms, and every whole block holds each version exactly as often as its share says, spread
evenly. Each block begins at another place of that pattern, drawn from the camera's name and the block's number, so that
a line whose parts alternate does not send every other part to one version. Invariant: the same camera, sequence number
and shares give the same version: to a repeat, to a frame that is replayed, after a reload and after a restart.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from hashlib import blake2b

BLOCK_MAX = 1000


def block_length(shares: Mapping[str, int]) -> int:
    """How many triggers it takes until each version has had exactly its share; 0 where all shares are 0."""
    return sum(shares.values()) // (math.gcd(*shares.values()) or 1)


class Shares:
    """The versions of one camera. `names`: all of them, also those with a share of 0."""

    def __init__(self, camera: str, shares: Mapping[str, int]) -> None:
        """At least one share is above 0, and a block is at most BLOCK_MAX long: the configuration sees to that."""
        self.names = tuple(shares)
        self._camera = camera
        length = block_length(shares)
        counts = {name: share * length // sum(shares.values()) for name, share in shares.items()}
        places = [((k + 0.5) / count, name) for name, count in counts.items() for k in range(count)]
        self._pattern = [name for _, name in sorted(places)]

    def version(self, seq: int) -> str:
        """The model for the trigger of this sequence number."""
        length = len(self._pattern)
        if length == 1:
            return self._pattern[0]
        block, place = divmod(seq, length)
        drawn = blake2b(f"{block} {self._camera}".encode(), digest_size=8).digest()
        return self._pattern[(place + int.from_bytes(drawn, "big")) % length]
