"""A model's guess of how long each step takes on a Jetson Orin, with the band that its sources leave open.

Callers: `schedule.py`, the report, `orind inspect --board`, later the choice of kernels to measure. A model, never a
measurement: it predicts kernels of TensorRT's quality. A step is its fixed cost plus the largest of four times, each
quantised to whole waves of tiles over the SMs: tensor cores, shared memory and issue slots of the SM, L2 to the SMs,
DRAM. Tile figures are those of the prototype's kernel, compiled for sm_87.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..ir.program import Program
from .device import Device
from .work import Work, work_of

# Multiply-accumulates a clock and SM: tensor cores for int8 (4096 dense op) and float16, CUDA cores for float32. SMs x
# clock x 4096 gives every figure that NVIDIA advertises for an Orin (halved for dense, without DLA).
MACS_PER_CLOCK = {"int8": 2048, "uint8": 2048, "float16": 1024, "float32": 128}
ITEM_BYTES = {"int8": 1, "uint8": 1, "float16": 2, "float32": 4}
SHARED_BYTES_PER_CLOCK = 128        # shared memory, ldmatrix and cp.async together
LANES_PER_CLOCK = 128               # four schedulers of 32 lanes
K_TILE = 64
IMMA_MACS = 16 * 8 * 32             # m16n8k32: 8 clocks of a quarter SM
# Barriers, prologue and uneven warps leave this share of a loop's rate. With it a large layer (3x3, 128 to 128, 72x120,
# batch 10) takes what TensorRT takes on AGX Orin, 375 us or 80 % of peak (NVIDIA/cutlass #2996).
SUSTAINED = 0.85
SPREAD_VALUES = 1024                # values a block of a stream or window kernel makes
SPLITS = (1, 2, 3, 4, 6, 8)
SPLIT_K_MIN = 256                   # a shorter share of K does not fill the pipeline of stages
SPLIT_EPILOGUE = 2.5                # int32 red.add of every part, then the last one finishes
# One tile on an SM leaves latency in the open, two nearly none (assumed; part of what the two fitted points check).
HIDDEN = {1: 0.75, 2: 0.9}
L2_KEPT = 0.6                       # activations up to this share of L2 stay there
L2_MISSED = 0.15                    # and this much of them goes to DRAM all the same


@dataclass(frozen=True, slots=True)
class Tile:
    """A kernel's tile of the output; `warp_m` x `warp_n` a warp; `other` instructions beside the tensor cores' for
    each warp and k-tile of 64 (SASS)."""

    m: int
    n: int
    warp_m: int
    warp_n: int
    other: int

    def clocks(self, k: int, macs_per_clock: int, item_bytes: int) -> float:
        """Clocks of one SM for this tile over `k`: the slowest of tensor cores, shared memory and issue."""
        warps = (self.m // self.warp_m) * (self.n // self.warp_n)
        math = self.m * self.n * k / macs_per_clock
        moved = warps * (self.warp_m + self.warp_n) + self.m + self.n
        shared = moved * k * item_bytes / SHARED_BYTES_PER_CLOCK
        imma = self.warp_m * self.warp_n * K_TILE / IMMA_MACS * (2048 / macs_per_clock)
        issue = warps / 4 * (imma + self.other) * k / K_TILE
        return max(math, shared, issue) / SUSTAINED


# Rows of the prototype's table, and the same turned (the loads are symmetric).
TILES = (Tile(128, 128, 64, 64, 140), Tile(256, 64, 64, 64, 170), Tile(128, 64, 64, 32, 120),
         Tile(64, 128, 32, 64, 120), Tile(64, 64, 32, 32, 90), Tile(64, 32, 32, 16, 78), Tile(32, 64, 16, 32, 78))


@dataclass(frozen=True, slots=True)
class StepCost:
    """A step's predicted time in ns. `low_ns` and `high_ns`: its band. `bound`: which term is the largest ("fixed"
    where that outweighs all others). `tile` "128x64/3": the best tile and its split of K. `sms`: how many SMs have
    work. `dram_ns`: how long DRAM is busy with it."""

    name: str
    ns: float
    low_ns: float
    high_ns: float
    bound: str
    tile: str
    sms: int
    dram_ns: float


@dataclass(frozen=True, slots=True)
class Costs:
    """The side table of a program on a device: one cost a step, in running order."""

    device: Device
    steps: tuple[StepCost, ...]

    @property
    def ns(self) -> float:
        return sum(step.ns for step in self.steps)

    @property
    def low_ns(self) -> float:
        return sum(step.low_ns for step in self.steps)

    @property
    def high_ns(self) -> float:
        return sum(step.high_ns for step in self.steps)


@dataclass(frozen=True, slots=True)
class _Estimate:
    ns: float
    bound: str
    tile: str
    sms: int
    dram_ns: float


def costs(program: Program, device: Device) -> Costs:
    """What each step of a program costs on a device, one kernel after the other."""
    return Costs(device, tuple(cost(work_of(step, program), device) for step in program.steps))


def cost(work: Work, device: Device) -> StepCost:
    """One step's predicted time and band. Raises nothing: a type without a rate counts as float32."""
    slow, fast = device.band()
    middle = _estimate(work, device)
    return StepCost(work.name, middle.ns, _estimate(work, fast).ns, _estimate(work, slow).ns, middle.bound, middle.tile,
                    middle.sms, middle.dram_ns)


def _estimate(work: Work, device: Device) -> _Estimate:
    dram = _dram_ns(work, device)
    best = min((_matrix(work, device) if work.kind == "matrix" else [_spread(work, device)]), key=lambda e: e.ns)
    ns, bound = (dram, "dram") if dram > best.ns else (best.ns, best.bound)
    if ns < device.launch_ns:
        bound = "fixed"
    return _Estimate(ns + device.launch_ns, bound, best.tile, best.sms, dram)


def _dram_ns(work: Work, device: Device) -> float:
    """Weights come cold; activations that fit stay in L2, but for a little."""
    moved = work.read_bytes + work.write_bytes
    missed = moved if moved > L2_KEPT * device.l2_bytes else L2_MISSED * moved
    return (work.weight_bytes + missed) / device.dram_bytes_per_ns


def _matrix(work: Work, device: Device) -> list[_Estimate]:
    """Every candidate tile and split of K."""
    rate = MACS_PER_CLOCK.get(work.dtype, MACS_PER_CLOCK["float32"])
    item = ITEM_BYTES.get(work.dtype, 4)
    k_padded = -(-work.k // K_TILE) * K_TILE
    found = []
    for tile in TILES:
        for split in SPLITS:
            if split > 1 and k_padded // split < SPLIT_K_MIN:
                break
            k = -(-k_padded // split // K_TILE) * K_TILE
            tiles = -(-work.m // tile.m) * -(-work.n // tile.n) * work.groups * split
            waves = -(-tiles // device.sms)
            # the taps of a filter row read the same pixels while they lie in L1; weights come once a tile
            fetched = (tile.m / work.kernel_width + tile.n) * k * item
            clocks = {"mma": waves * tile.clocks(k, rate, item) / HIDDEN.get(waves, 1.0),
                      "l2": waves * fetched / device.l2_bytes_per_clock,
                      "epilogue": waves * tile.m * tile.n * work.instructions / LANES_PER_CLOCK
                      * (SPLIT_EPILOGUE if split > 1 else 1.0)}
            bound = max(clocks, key=clocks.__getitem__)
            found.append(_Estimate(device.cycles_ns(clocks[bound]), bound, f"{tile.m}x{tile.n}/{split}",
                                   min(tiles, device.sms), 0.0))
    return found


def _spread(work: Work, device: Device) -> _Estimate:
    """Windows and streams: all SMs share the values; bound by instructions, or by L2."""
    sms = max(1, min(device.sms, -(-work.outputs // SPREAD_VALUES)))
    clocks = {"issue": work.outputs * work.instructions / LANES_PER_CLOCK / sms,
              "l2": (work.read_bytes + work.write_bytes) / device.l2_bytes_per_clock / sms}
    bound = max(clocks, key=clocks.__getitem__)
    return _Estimate(device.cycles_ns(clocks[bound]), bound, "", sms, 0.0)
