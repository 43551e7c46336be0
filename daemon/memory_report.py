"""What lies in an engine's reservation: as the engine tells it, main keeps it and people read it.

Used by the engine loop, the generation, `orind status` and the page. Invariant: sums are always whole; blocks are told
together where they are more than one message holds, and then it says how many they are.
"""

from __future__ import annotations

import json
from typing import Any

from ..ipc.bounded_text import bound_text
from ..ipc.message_text import TEXT_BYTES_MAX
from ..kernels.memory.pool import Block
from ..kernels.memory.reservation import Reservation

OWNER_CHARS_MAX = 60
NUMBERS = ("size", "reserve", "reserve_used", "emergencies", "used", "free", "largest_free", "blocks_total")
Shown = list[Any]  # offset, size, owner, born in ms of CLOCK_MONOTONIC


def to_text(memory: Reservation) -> str:
    """As JSON in one notice: NUMBERS, `what` the memory is, `device_free` bytes or null, and `blocks`."""
    pool = memory.pool
    blocks = [_shown(block) for block in pool.blocks]
    fields: dict[str, Any] = {
        "what": memory.what, "size": pool.size, "reserve": pool.reserve, "reserve_used": pool.reserve_used,
        "emergencies": pool.emergencies, "used": pool.used, "free": pool.free_bytes,
        "largest_free": pool.largest_free, "blocks_total": len(blocks), "device_free": memory.device_free(),
    }
    for shown in _ever_shorter(blocks):
        text = json.dumps({**fields, "blocks": shown}, separators=(",", ":"))
        if len(text) <= TEXT_BYTES_MAX:
            return text
    raise AssertionError("without blocks it always fits")


def _shown(block: Block) -> Shown:
    return [block.offset, block.size, bound_text(block.owner, OWNER_CHARS_MAX), block.born_ns // 1_000_000]


def _ever_shorter(blocks: list[Shown]) -> list[list[Shown]]:
    """All; then neighbours of one model as one; then only the largest of these, in their order, ever fewer."""
    merged: list[Shown] = []
    for offset, size, owner, born_ms in blocks:
        model = owner.partition(":")[0]
        last = merged[-1] if merged else None
        if last is not None and last[2] == model and last[0] + last[1] == offset:
            last[1], last[3] = last[1] + size, min(last[3], born_ms)
        else:
            merged.append([offset, size, model, born_ms])
    fewer, kept = [], merged
    while kept:
        kept = sorted(sorted(kept, key=lambda shown: -shown[1])[: len(kept) * 3 // 4])
        fewer.append(kept)
    return [blocks, merged, *fewer, []]


def from_text(text: str) -> dict[str, Any]:
    """The table, with `fragmentation_percent` added. Raises ValueError for what `to_text` does not write."""
    fields = json.loads(text)
    if type(fields) is not dict or set(fields) != {"what", "device_free", "blocks", *NUMBERS}:
        raise ValueError("not a reservation")
    free = fields["device_free"]
    numbers = [fields[name] for name in NUMBERS] + ([] if free is None else [free])
    if any(type(number) is not int or number < 0 for number in numbers) or type(fields["what"]) is not str:
        raise ValueError("not a reservation's numbers")
    if fields["largest_free"] > fields["free"] or fields["reserve"] > fields["size"]:
        raise ValueError("a reservation's numbers that cannot be")
    if type(fields["blocks"]) is not list:
        raise ValueError("not a reservation's blocks")
    for block in fields["blocks"]:
        if type(block) is not list or [type(part) for part in block] != [int, int, str, int]:
            raise ValueError("not a reservation's block")
        if not 0 <= block[0] <= block[0] + block[1] <= fields["size"]:
            raise ValueError("a block outside its reservation")
    return {**fields, "fragmentation_percent": round(fragmentation_percent(fields), 2)}


def fragmentation_percent(fields: dict[str, Any]) -> float:
    """1 - largest free block / free, in percent; nothing free is nothing in pieces."""
    return 100 * (1 - fields["largest_free"] / fields["free"]) if fields["free"] else 0.0


def in_words(memory: dict[str, Any]) -> str:
    """One line with the sums."""
    used = f", {mib(memory['reserve_used'])} of it in use" if memory["reserve_used"] else ""
    return (
        f"{mib(memory['used'])} of {mib(memory['size'])} used in {memory['blocks_total']} blocks, "
        f"{mib(memory['free'])} free, fragmentation {memory['fragmentation_percent']:.1f} %; "
        f"emergency reserve {mib(memory['reserve'])}{used}"
    )


def mib(nbytes: int) -> str:
    return f"{nbytes / (1 << 20):.1f} MiB"
