"""The convolution kernels and whole frames on a GPU, against floors measured in the same run (scripts/measure_gpu).

1. Layers of a YOLOv5s-640: microseconds of the tile that the executor would choose and of the fastest one; beside them
   what a copy of the same bytes takes, and cuDNN's float16 convolution where PyTorch is installed. A figure is the
   median of TURNS graphs of LAUNCHES launches each, after one to warm up.
2. Whole frames of shipped models, wall time, beside the CPU executor with one thread.

Invariant: the figures are printed, never judged; a kernel whose middle row is not the contract's (float16: within a
loose bound; the tests judge it) ends it by an AssertionError before it is timed.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import make_parts
import numpy as np
from built_plans import MODELS
from numpy.typing import NDArray

from orind.daemon.terminal import table
from orind.kernels.build import build_plan
from orind.kernels.cpu.executor import CpuExecutor
from orind.kernels.cuda.convolution import TILES, Arguments, Kernel, Tile, ceil_div, grid, pack, partial_bytes
from orind.kernels.cuda.device import Device, Graph
from orind.kernels.cuda.executor import CudaExecutor
from orind.kernels.cuda.launches import choose_tile
from orind.kernels.ir.errors import ProgramError
from orind.kernels.ir.validate import programs_of
from orind.kernels.plan.file import PlanFile
from orind.kernels.spec_yaml import read_spec

# As in an engine process; set before NumPy is loaded, so by starting anew
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
LAUNCHES, TURNS = 20, 7
FRAMES = 200
Array = NDArray[Any]


@dataclass(frozen=True)
class Layer:
    """One convolution, symmetric pads that keep the size (before the stride)."""

    frames: int
    size: int
    cin: int
    cout: int
    kernel: int
    stride: int = 1

    @property
    def out(self) -> int:
        return (self.size - 1) // self.stride + 1

    @property
    def macs(self) -> int:
        return self.frames * self.out**2 * self.cout * self.cin * self.kernel**2

    def __str__(self) -> str:
        stride = f" /{self.stride}" if self.stride > 1 else ""
        return f"{self.frames}x{self.size}x{self.size} {self.cin}->{self.cout} {self.kernel}x{self.kernel}{stride}"


LAYERS = (
    Layer(1, 320, 32, 64, 3, 2),
    Layer(1, 160, 64, 64, 1),
    Layer(1, 160, 32, 32, 3),
    Layer(1, 160, 64, 128, 3, 2),
    Layer(1, 80, 128, 128, 1),
    Layer(1, 80, 64, 64, 3),
    Layer(1, 80, 128, 256, 3, 2),
    Layer(1, 40, 256, 256, 1),
    Layer(1, 40, 128, 128, 3),
    Layer(1, 20, 1024, 512, 1),
    Layer(1, 20, 256, 256, 3),
    Layer(8, 80, 64, 64, 3),
    Layer(8, 40, 128, 128, 3),
    Layer(8, 40, 256, 256, 1),
)


class Bench:
    """Buffers of one layer on the device, and launches over them."""

    def __init__(self, device: Device, layer: Layer, kind: str) -> None:
        self.device, self.layer, self.kind = device, layer, kind
        draw = np.random.default_rng(1)
        shape = (layer.frames, layer.size, layer.size, layer.cin)
        weight = (layer.kernel, layer.kernel, layer.cin, layer.cout)
        if kind == "s8":
            self.x: Array = draw.integers(-128, 128, shape).astype(np.int8)
            self.weight: Array = draw.integers(-127, 128, weight).astype(np.int8)
            self.vectors = (np.zeros(layer.cout, np.int32), np.full(layer.cout, 1e-3, np.float32))
        else:
            self.x = draw.normal(0, 1, shape).astype(np.float16)
            self.weight = draw.normal(0, 0.1, weight).astype(np.float16)
            self.vectors = (np.zeros(layer.cout, np.float32), np.ones(layer.cout, np.float32))
        self.y_bytes = layer.frames * layer.out**2 * layer.cout * self.x.itemsize
        self.x_there, self.y_there = device.upload(self.x), device.zeros(self.y_bytes)

    def launch(self, tile: Tile, splits: int) -> Callable[[], None]:
        """Enqueues the convolution once, on tiles of this kind."""
        layer, device, item = self.layer, self.device, self.x.itemsize
        windowed = layer.kernel > 1
        kernel = Kernel(tile, self.kind, "half" if self.kind == "f16" else "plain", windowed, splits > 1)
        packed = pack(kernel, self.weight, self.vectors, 1, layer.size, layer.cin * item, (1, 1))
        blocks = grid(tile, layer.frames * layer.out**2, layer.cout, 1, splits)
        held = [device.upload(a) for a in (packed.weight, packed.gather, *packed.vectors)]
        held.append(device.zeros(4 * layer.frames))
        pad = layer.kernel // 2
        arguments = Arguments(
            x=int(self.x_there), weight=int(held[0]), gather=int(held[1]), y=int(self.y_there), bias=int(held[2]),
            multiplier=int(held[3]), overflow=int(held[4]), height=layer.size, width=layer.size,
            out_height=layer.out, out_width=layer.out, pixels=layer.frames * layer.out**2, stride_h=layer.stride,
            stride_w=layer.stride, pad_top=pad, pad_left=pad, x_frame=self.x[0].nbytes, x_pitch=layer.cin * item,
            x_group=layer.cin * item, y_frame=layer.out**2 * layer.cout * item, y_pitch=layer.cout * item,
            channels=layer.cout, steps=packed.steps, stored=layer.cout,
            low=-128 if self.kind == "s8" else -np.inf, high=127 if self.kind == "s8" else np.inf,
        )
        if splits > 1:
            held += [device.zeros(partial_bytes(tile, blocks)), device.zeros(blocks[0] * blocks[1] * 4)]
            arguments.partial, arguments.arrived = int(held[-2]), int(held[-1])
        function, data = device.function(kernel), np.frombuffer(bytes(arguments), np.uint8)
        size = (tile.threads, 1, 1)

        def enqueue(_held: Sequence[Any] = held) -> None:
            function(data, stream=device.stream, block=size, grid=blocks, shared=tile.shared_bytes)

        return enqueue

    def check(self, enqueue: Callable[[], None]) -> None:
        """The middle row of frame 0 is what the contract says (float16: within a loose bound; the tests judge it)."""
        layer = self.layer
        enqueue()
        self.device.stream.synchronize()
        found = np.empty((layer.frames, layer.out, layer.out, layer.cout), self.x.dtype)
        self.device.driver.memcpy_dtoh(found, self.y_there)
        row, pad = layer.out // 2, layer.kernel // 2
        x = np.pad(self.x[:1].astype(np.float64), ((0, 0), (pad, pad), (pad, pad), (0, 0)))
        sums = np.zeros((layer.out, layer.cout))
        for r in range(layer.kernel):
            for s in range(layer.kernel):
                line = x[0, row * layer.stride + r, s : s + (layer.out - 1) * layer.stride + 1 : layer.stride]
                sums += line @ self.weight[r, s].astype(np.float64)
        if self.kind == "s8":
            v = sums.astype(np.float32) * np.float32(1e-3)
            assert np.array_equal(found[0, row], np.rint(np.clip(v, -128, 127)).astype(np.int8)), str(layer)
        else:
            assert np.allclose(found[0, row], sums, rtol=2e-3, atol=2e-2), str(layer)


def microseconds(device: Device, enqueue: Callable[[], None]) -> float:
    """Median time of one of LAUNCHES launches in a graph."""
    graphs: list[Graph] = []
    with device.captured(graphs):
        for _ in range(LAUNCHES):
            enqueue()
    begin, end = device.driver.Event(), device.driver.Event()
    taken = []
    for _ in range(TURNS + 1):
        begin.record(device.stream)
        graphs[0].launch(device.stream)
        end.record(device.stream)
        end.synchronize()
        taken.append(end.time_since(begin) * 1000 / LAUNCHES)
    graphs[0].close()
    return statistics.median(taken[1:])


def copy_of(bench: Bench) -> Callable[[], None]:
    """Moves as many bytes as the layer reads and writes at least: half of them read, half written."""
    nbytes = (bench.x.nbytes + bench.weight.nbytes + bench.y_bytes) // 2
    source, target = bench.device.zeros(nbytes), bench.device.zeros(nbytes)
    copy = bench.device.driver.memcpy_dtod_async
    return lambda: copy(target, source, nbytes, bench.device.stream)


@functools.cache
def torch_or_none() -> Any:
    """PyTorch, if it is there and sees the GPU: the library that cuDNN's figures come from."""
    try:
        import torch
    except ImportError:
        return None
    return torch if torch.cuda.is_available() else None


def cudnn_microseconds(layer: Layer) -> float | None:
    """cuDNN's float16 convolution with channels last, without a bias, in a CUDA graph as ours."""
    torch = torch_or_none()
    if torch is None:
        return None
    torch.backends.cudnn.benchmark = True
    like = {"device": "cuda", "dtype": torch.float16}
    x = torch.randn(layer.frames, layer.cin, layer.size, layer.size, **like).to(memory_format=torch.channels_last)
    weight = torch.randn(layer.cout, layer.cin, layer.kernel, layer.kernel, **like)
    weight = weight.to(memory_format=torch.channels_last)

    def run() -> Any:
        return torch.nn.functional.conv2d(x, weight, stride=layer.stride, padding=layer.kernel // 2)

    for _ in range(3):
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(LAUNCHES):
            run()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    taken = []
    for _ in range(TURNS + 1):
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        taken.append(begin.elapsed_time(end) * 1000 / LAUNCHES)
    return statistics.median(taken[1:])


HEAD_LAYERS = (
    "layer", "type", "chosen tile", "us", "TOP/s", "fastest", "us", "chosen/fastest", "copy us", "/copy", "/cuDNN f16",
)


def measure_layers(device: Device) -> list[list[str]]:
    rows = []
    for layer in LAYERS:
        cudnn = cudnn_microseconds(layer)
        for kind in ("s8", "f16"):
            bench = Bench(device, layer, kind)
            k_bytes = layer.kernel**2 * layer.cin * bench.x.itemsize
            chosen = choose_tile(layer.frames * layer.out**2, layer.cout, 1, k_bytes, device.sms)
            times = {}
            for tile in TILES:
                for splits in sorted({1, chosen[1], min(4, max(1, ceil_div(k_bytes, tile.bk) // 4))}):
                    enqueue = bench.launch(tile, splits)
                    bench.check(enqueue)
                    times[tile, splits] = microseconds(device, enqueue)
            copy = microseconds(device, copy_of(bench))
            best = min(times, key=times.__getitem__)
            ours = times[chosen]
            rows.append([
                str(layer), kind, f"{chosen[0]} k{chosen[1]}", f"{ours:.1f}", f"{2e-6 * layer.macs / ours:.1f}",
                f"{best[0]} k{best[1]}", f"{times[best]:.1f}", f"{ours / times[best]:.2f}", f"{copy:.1f}",
                f"{ours / copy:.1f}", "" if cudnn is None else f"{ours / cudnn:.2f}",
            ])
            print("  ".join(rows[-1]), flush=True)
    return rows


HEAD_FRAMES = (
    "model", "precision", "batch", "steps", "on the CPU", "segments", "ms a frame", "CPU executor ms", "CPU / GPU",
)


def plan_of(folder: Path, model: str, precision: str) -> Path:
    """A plan whose accuracy nobody needs: scales from some pictures, no search, the gate ignored."""
    pictures, plan = folder / "parts", folder / f"{model}-{precision}.plan"
    if not pictures.exists():
        make_parts.write_parts(8, 1, pictures)
    spec = read_spec(MODELS / f"{model}.yaml")
    build_plan(MODELS / f"{model}.onnx", spec, [pictures], plan, precision, method="minmax", accept_loss=True)
    return plan


def median_ms(run: Callable[[], object], count: int) -> float:
    """Wall time of one call, after five to warm up."""
    taken = []
    for _ in range(count + 5):
        start = time.perf_counter()
        run()
        taken.append(1000 * (time.perf_counter() - start))
    return statistics.median(taken[5:])


def measure_frames(device: Device, folder: Path) -> list[list[str]]:
    rows = []
    for model, precision in itertools.product(("part-inspect", "blazeface-back"), ("int8", "fp16")):
        with PlanFile.open_path(plan_of(folder, model, precision)) as plan:
            for batch in sorted(programs_of(plan.metadata, plan.tensors)):
                beside = CudaExecutor.alone(plan, batch, device=device, cpu_steps=True)
                with CpuExecutor(plan, batch) as cpu, beside as cuda:
                    cuda.golden()
                    ours, theirs = median_ms(cuda.run, FRAMES), median_ms(cpu.run, FRAMES // 5)
                    segments = sum(segment.on_device for segment in cuda.segments)
                    rows.append([
                        model, precision, str(batch), str(len(cuda.program.steps)), str(len(cuda.cpu_steps)),
                        str(segments), f"{ours / batch:.3f}", f"{theirs / batch:.2f}", f"{theirs / ours:.1f}",
                    ])
                print("  ".join(rows[-1]), flush=True)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/bench_gpu", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    if any(os.environ.get(name) != value for name, value in ONE_THREAD.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **ONE_THREAD})
    try:
        device = Device()
    except ProgramError as error:
        print(f"bench_gpu: {error}", file=sys.stderr)
        return 1
    try:
        print(f"{device.name}, {device.sms} SMs, compute capability {'.'.join(map(str, device.capability))}")
        layers = measure_layers(device)
        with tempfile.TemporaryDirectory(prefix="orind-") as folder:
            frames = measure_frames(device, Path(folder))
        print("\n".join(["", *table(HEAD_LAYERS, layers, 3), "", *table(HEAD_FRAMES, frames, 2)]))
    finally:
        device.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
