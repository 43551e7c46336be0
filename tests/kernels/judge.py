"""The independent judge of INT8: every integer step computed again in int64 and float64, from what the step read.

Shares no code with the executor and reads the program only as a description. fmul and fadd are formed in float64 and
rounded once to float32, which is exact: a product of two float32 fits float64, and a float64 sum of two float32 rounds
to the same float32 (53 >= 2 * 24 + 2).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orind.kernels.cpu.executor import ProgramRunner
from orind.kernels.ir import steps as s
from orind.kernels.ir.grid_steps import ResampleI8, Stuff
from orind.kernels.ir.program import Tensor

Array = NDArray[Any]
INTEGER_STEPS = (s.ConvI8, s.MaxPool, s.AveragePoolI8, s.Upsample, s.AddI8, s.MulI8, s.TableI8, s.RequantiseI8, s.Copy,
                 s.ToFlat, Stuff, ResampleI8, s.Convert)


def single(v: Array) -> Array:
    """One rounding to float32, kept as float64."""
    return v.astype(np.float32).astype(np.float64)


def half_even(v: Array) -> Array:
    low = np.floor(v)
    rest = v - low
    up = (rest > 0.5) | ((rest == 0.5) & (low % 2 == 1))
    return (low + up).astype(np.int64)


def stored(v: Array, low: int, high: int) -> Array:
    return half_even(np.minimum(np.maximum(v, low), high))


class Judge:
    """Looks at one frame of a runner; `check` raises AssertionError naming the step."""

    def __init__(self, runner: ProgramRunner, constants: Mapping[str, Array]) -> None:
        self.runner = runner
        self.constants = constants
        self.checked: dict[str, int] = {}
        self.residuals: list[Array] = []              # of each frame, from before the step: y may take their place

    def tensor(self, name: str) -> Tensor:
        return self.runner.program.tensors[name]

    def read(self, name: str, frame: int, whole: bool = True) -> Array:
        """Logical codes (H, W, C) as int64, straight from the bytes; `whole`: all parts are written, so pads are 0.
        """
        t = self.tensor(name)
        item = np.dtype(t.dtype).itemsize
        raw = self.runner.binding.arena[t.offset + frame * t.frame_bytes:][:t.shape[0] * t.shape[1] * t.pitch * item]
        image = raw.view(t.dtype).reshape(t.shape[0], t.shape[1], t.pitch)
        picked = [image[:, :, t.start + a:t.start + a + n] for a, n in t.segments]
        pads = np.ones(t.span, dtype=bool)
        for a, n in t.segments:
            pads[a:a + n] = False
        assert not whole or not image[:, :, t.start:t.start + t.span][:, :, pads].any(), f"pads of {name} are not 0"
        values = np.concatenate(picked, 2)
        return values if t.dtype.startswith("float") else values.astype(np.int64)

    def channels(self, name: str) -> list[int]:
        return [a + i for a, n in self.tensor(name).segments for i in range(n)]

    def run(self) -> int:
        """Runs the program step by step and checks each integer step; the number of values compared."""
        values = 0
        self._keep(0)
        for index, step in enumerate(self.runner.walk()):
            for frame in range(self.runner.program.batch):
                values += self.check(step, frame)
            self._keep(index + 1)
        return values

    def _keep(self, index: int) -> None:
        """The residual of the step that runs next."""
        name = next((getattr(step, "residual", "") for step in self.runner.program.steps[index:index + 1]), "")
        self.residuals = [self.read(name, frame) for frame in range(self.runner.program.batch)] if name else []

    def check(self, step: s.Step, frame: int) -> int:
        reads = [self.tensor(n) for n in step.reads()]
        from_float = any(t.dtype.startswith("float") for t in reads)
        if not isinstance(step, INTEGER_STEPS) or (from_float and not isinstance(step, s.Convert)):
            return 0
        want = self.want(step, frame)
        name = step.writes()[0]
        part = isinstance(step, s.Copy) and not step.clear
        got = self.read(name, frame, not part) if self.tensor(name).layout == "nhwc" \
            else self.runner.binding.view(name, frame)[0].transpose(1, 2, 0)
        if isinstance(step, s.Copy) and part:
            got = got[:, :, [self.channels(name).index(b + i) for _, b, n in step.runs for i in range(n)]]
        assert np.array_equal(got.astype(np.float64), want.astype(np.float64)), \
            f"{type(step).__name__} {step.name}: {int((got != want).sum())} of {want.size} differ"
        self.checked[type(step).__name__] = self.checked.get(type(step).__name__, 0) + want.size
        return int(want.size)

    def want(self, step: s.Step, frame: int) -> Array:
        if isinstance(step, s.ConvI8):
            return self.convolution(step, frame)
        if isinstance(step, s.AddI8):
            a, b = self.read(step.a, frame), self.read(step.b, frame)
            v = single(single(a * np.float64(np.float32(step.a_multiplier)))
                       + single(b * np.float64(np.float32(step.b_multiplier))))
            return stored(v, step.low, step.high)
        if isinstance(step, s.MulI8):
            product = self.read(step.a, frame) * self.read(step.b, frame)
            return stored(single(product * np.float64(np.float32(step.multiplier))), step.low, step.high)
        x = self.read(step.reads()[0], frame)
        if isinstance(step, s.RequantiseI8):
            return stored(single(x * np.float64(np.float32(step.multiplier))), step.low, step.high)
        if isinstance(step, s.Convert):
            v = single(x.astype(np.float64) * np.float64(np.float32(step.multiplier)))
            kind = np.dtype(self.tensor(step.y).dtype)
            return v.astype(kind) if kind.kind == "f" else stored(v, -128, 127)
        if isinstance(step, s.TableI8):
            return self.constants[step.table].astype(np.int64)[x + 128]
        if isinstance(step, s.ToFlat):
            return single(x * np.float64(np.float32(self.tensor(step.x).scale)))
        if isinstance(step, s.Upsample):
            return np.kron(x, np.ones((*step.factors, 1), dtype=np.int64))
        if isinstance(step, ResampleI8):
            return self.resampled(step, x)
        if isinstance(step, Stuff):
            rows, columns, depth = x.shape
            full = np.zeros((rows * step.stride[0], columns * step.stride[1], depth), dtype=np.int64)
            full[::step.stride[0], ::step.stride[1]] = x
            height, width, _ = self.tensor(step.y).shape
            return full[step.crop[0]:, step.crop[1]:][:height, :width]
        if isinstance(step, s.MaxPool):
            return self.window(step, x, -10_000).max(0)
        if isinstance(step, s.AveragePoolI8):
            sums = self.window(step, x, 0).sum(0)
            return stored(single(sums * self.constants[step.multiplier].astype(np.float64)[:, :, None]), -128, 127)
        assert isinstance(step, s.Copy)
        return self.copied(step, x)

    def resampled(self, step: ResampleI8, x: Array) -> Array:
        """Four whole weights over 2^22 for each pixel of y."""
        rows, columns = self.constants[step.rows], self.constants[step.columns]
        down, right = (self.constants[n].astype(np.int64) for n in (step.row_parts, step.column_parts))
        total = np.zeros(self.tensor(step.y).shape, dtype=np.int64)
        for lower in (0, 1):
            for later in (0, 1):
                wy = down if lower else 2048 - down
                wx = right if later else 2048 - right
                total += x[rows[lower]][:, columns[later]] * (wy[:, None] * wx[None, :])[:, :, None]
        assert np.abs(total).max() <= 1 << 29
        return stored(single(single(total.astype(np.float64)) * np.float64(np.float32(step.multiplier))), -128, 127)

    def copied(self, step: s.Copy, x: Array) -> Array:
        source, target = self.channels(step.x), self.channels(step.y)
        if not step.clear:
            return x[:, :, [source.index(a + i) for a, _, n in step.runs for i in range(n)]]
        out = np.zeros(self.tensor(step.y).shape, dtype=np.int64)
        for a, b, n in step.runs:
            for i in range(n):
                out[step.corner[0]:step.corner[0] + x.shape[0], step.corner[1]:step.corner[1] + x.shape[1],
                    target.index(b + i)] = x[:, :, source.index(a + i)]
        return out

    def window(self, step: Any, x: Array, border: int) -> Array:
        """(kh * kw, Ho, Wo, C): what each tap of the window sees."""
        ho, wo, _ = self.tensor(step.y).shape
        dy, dx = getattr(step, "dilation", (1, 1))
        reach_y = (ho - 1) * step.stride[0] + (step.kernel[0] - 1) * dy + 1
        reach_x = (wo - 1) * step.stride[1] + (step.kernel[1] - 1) * dx + 1
        big = np.full((max(reach_y, step.pads[0] + x.shape[0]), max(reach_x, step.pads[1] + x.shape[1]), x.shape[2]),
                      border, dtype=np.int64)
        big[step.pads[0]:step.pads[0] + x.shape[0], step.pads[1]:step.pads[1] + x.shape[1]] = x
        return np.stack([big[r * dy:, c * dx:][:(ho - 1) * step.stride[0] + 1:step.stride[0],
                                              :(wo - 1) * step.stride[1] + 1:step.stride[1]]
                         for r in range(step.kernel[0]) for c in range(step.kernel[1])])

    def convolution(self, step: s.ConvI8, frame: int, sums: bool = False) -> Array:
        """What the step makes, or its int32 `sums`."""
        taps = self.window(step, self.read(step.x, frame), 0)
        weight = self.constants[step.weight].astype(np.int64)
        ins, outs = self.channels(step.x), self.channels(step.y)
        if isinstance(step, s.DepthwiseI8):
            acc = (taps * weight.reshape(-1, weight.shape[2])[:, None, None, outs]).sum(0)
        else:
            acc = np.zeros((*taps.shape[1:3], len(outs)), dtype=np.int64)
            flat = weight.reshape(-1, *weight.shape[2:])
            per, size = flat.shape[1], len(outs) // step.groups
            for g in range(step.groups):
                mine = [i for i, c in enumerate(ins) if g * per <= c < (g + 1) * per] if step.groups > 1 \
                    else list(range(len(ins)))
                rows = [ins[i] - g * per if step.groups > 1 else ins[i] for i in mine]
                columns = outs[g * size:(g + 1) * size]
                for t in range(len(taps)):
                    part = taps[t][:, :, mine].reshape(-1, len(mine)) @ flat[t][np.ix_(rows, columns)]
                    acc[:, :, g * size:(g + 1) * size] += part.reshape(*taps.shape[1:3], -1)
        acc = acc + self.constants[step.bias].astype(np.int64)[outs]
        assert np.abs(acc).max(initial=0) < 1 << 31
        if sums:
            return acc
        m = self.constants[step.multiplier].astype(np.float64)[outs]
        v = single(single(acc.astype(np.float64)) * m)
        if self.tensor(step.y).dtype == "float32":
            return v
        if step.table:
            code = self.constants[step.table].astype(np.int64)[stored(v, -512, 511) + 512]
            if not step.residual:
                return code
            v = code.astype(np.float64)
        if step.residual:
            v = single(v + single(self.residuals[frame] * np.float64(np.float32(step.residual_multiplier))))
        return stored(v, step.low, step.high)
