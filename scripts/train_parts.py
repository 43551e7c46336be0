#!/usr/bin/env python3
"""Trains the shipped part detector on generated pictures and exports it as ONNX: about 15 minutes on two cores.

Called by hand (extra `train`) when the recipe changes; what it makes is configs/models/part-inspect.onnx. Data and
network are made from fixed seeds, and the seeds of scripts/evaluate_parts.py lie outside the training seeds.
Invariant: the graph is static (batch 1, 3 x 256 x 256), and boxes leave it in pixels, decoded from constants.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path

import make_parts
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

SIZE = 256
STRIDES = (8, 16)
LONGEST_SIDE = (40.0, float("inf"))  # a box belongs to the first level whose limit its longer side stays below
CENTRE_RADIUS = 1.25  # cells around a box's centre that learn it
CLASSES = len(make_parts.LABELS)
WIDTHS = (12, 24, 48, 96)
BOX_GAIN, CLASS_GAIN = 2.0, 4.0


class ConvUnit(nn.Module):
    """Convolution, batch normalisation, SiLU."""

    def __init__(self, inputs: int, outputs: int, kernel: int = 3, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
        self.norm = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        """(n, inputs, h, w) -> (n, outputs, h / stride, w / stride)."""
        return functional.silu(self.norm(self.conv(x)))


class C2f(nn.Module):
    """Cross-stage block: one half passes by, the other goes through a residual pair; all parts are joined."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        half = self.half_width = channels // 2
        self.enter = ConvUnit(channels, channels, 1)
        self.pair = nn.Sequential(ConvUnit(half, half), ConvUnit(half, half))
        self.leave = ConvUnit(3 * half, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Shape kept."""
        past, through = self.enter(x).split(self.half_width, 1)  # constant sizes: one Split in ONNX
        return self.leave(torch.cat([past, through, through + self.pair(through)], 1))  # type: ignore[no-any-return]


class Sppf(nn.Module):
    """Spatial pyramid pooling: the tensor and three successive 5 x 5 maxima of it, joined."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.enter = ConvUnit(channels, channels // 2, 1)
        self.pool = nn.MaxPool2d(5, 1, 2)
        self.leave = ConvUnit(channels // 2 * 4, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Shape kept."""
        parts = [self.enter(x)]
        for _ in range(3):
            parts.append(self.pool(parts[-1]))
        return self.leave(torch.cat(parts, 1))  # type: ignore[no-any-return]


class Head(nn.Module):
    """Prediction layer of one level: 4 distances (before softplus, in cells) and the class logits."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.stem = ConvUnit(channels, channels)
        self.box = nn.Conv2d(channels, 4, 1)
        self.label = nn.Conv2d(channels, CLASSES, 1)
        if self.label.bias is not None:
            nn.init.constant_(self.label.bias, -4.6)  # start at 1 %: nearly every cell is background

    def forward(self, x: Tensor) -> Tensor:
        """(n, channels, h, w) -> (n, 4 + CLASSES, h, w)."""
        x = self.stem(x)
        return torch.cat([self.box(x), self.label(x)], 1)


class Detector(nn.Module):
    """Backbone of four halvings, a neck of two levels (top-down, then bottom-up), one head a level."""

    def __init__(self) -> None:
        super().__init__()
        first, second, third, fourth = WIDTHS
        self.stem = ConvUnit(3, first, 3, 2)
        self.quarter = nn.Sequential(ConvUnit(first, second, 3, 2), C2f(second))
        self.eighth = nn.Sequential(ConvUnit(second, third, 3, 2), C2f(third))
        self.sixteenth = nn.Sequential(ConvUnit(third, fourth, 3, 2), C2f(fourth), Sppf(fourth))
        self.lateral = ConvUnit(fourth, third, 1)
        self.down_merge = nn.Sequential(ConvUnit(2 * third, third, 1), C2f(third))
        self.climb = ConvUnit(third, third, 3, 2)
        self.up_merge = ConvUnit(third + fourth, third, 1)
        self.heads = nn.ModuleList([Head(third), Head(third)])

    def forward(self, x: Tensor) -> list[Tensor]:
        """(n, 3, h, w) RGB in 0..1 -> one (n, 4 + CLASSES, h / stride, w / stride) for each of STRIDES."""
        fine = self.eighth(self.quarter(self.stem(x)))
        coarse = self.sixteenth(fine)
        raised = functional.interpolate(self.lateral(coarse), scale_factor=2.0, mode="nearest")
        fine = self.down_merge(torch.cat([raised, fine], 1))
        coarse = self.up_merge(torch.cat([self.climb(fine), coarse], 1))
        return [self.heads[0](fine), self.heads[1](coarse)]


class Decoded(nn.Module):
    """The detector with its boxes decoded in the graph: what is exported."""

    centres: Tensor
    strides: Tensor

    def __init__(self, detector: Detector) -> None:
        super().__init__()
        self.detector = detector
        centres, strides = [], []
        for stride in STRIDES:
            centres.append(cell_centres(SIZE // stride).reshape(2, -1))
            strides.append(torch.full((1, (SIZE // stride) ** 2), float(stride)))
        self.register_buffer("centres", torch.cat(centres, 1)[None])
        self.register_buffer("strides", torch.cat(strides, 1)[None])

    def forward(self, images: Tensor) -> Tensor:
        """(1, 3, 256, 256) -> (1, 4 + CLASSES, 1280): cx, cy, w, h in pixels, then one probability a class."""
        levels = zip(self.detector(images), STRIDES, strict=True)
        joined = torch.cat([level.reshape(1, 4 + CLASSES, (SIZE // stride) ** 2) for level, stride in levels], 2)
        sides = functional.softplus(joined[:, :4])
        low, high = self.centres - sides[:, :2], self.centres + sides[:, 2:]
        return torch.cat([(low + high) / 2 * self.strides, (high - low) * self.strides, joined[:, 4:].sigmoid()], 1)


def cell_centres(cells: int) -> Tensor:
    """(2, cells, cells): x and y of each cell's centre, in cells."""
    steps = torch.arange(cells) + 0.5
    rows, columns = torch.meshgrid(steps, steps, indexing="ij")
    return torch.stack([columns, rows])


@dataclass
class Targets:
    """What one level should say: labels (n, CLASSES, m, m), boxes (n, 4, m, m) in cells, learns (n, m, m), 0 or 1."""

    labels: Tensor
    boxes: Tensor
    learns: Tensor

    def pick(self, index: NDArray[np.int64]) -> Targets:
        """The targets of some pictures."""
        return Targets(self.labels[index], self.boxes[index], self.learns[index])

    def mirrored(self) -> Targets:
        """The targets of pictures flipped left to right."""
        left, top, right, bottom = self.boxes.flip(3).unbind(1)
        cells = self.boxes.shape[-1]
        boxes = torch.stack([cells - right, top, cells - left, bottom], 1)
        return Targets(self.labels.flip(3), boxes, self.learns.flip(2))


def level_targets(objects: NDArray[np.float32], level: int) -> tuple[NDArray[np.float32], ...]:
    """labels, boxes and learns of one picture at one level, from rows class, x1, y1, x2, y2 in pixels."""
    stride, cells = STRIDES[level], SIZE // STRIDES[level]
    least = LONGEST_SIDE[level - 1] if level else 0.0
    labels = np.zeros((CLASSES, cells, cells), np.float32)
    boxes = np.zeros((4, cells, cells), np.float32)
    learns = np.zeros((cells, cells), np.float32)
    steps = np.arange(cells, dtype=np.float32) + 0.5
    areas = (objects[:, 3] - objects[:, 1]) * (objects[:, 4] - objects[:, 2])
    for row in objects[np.argsort(-areas)]:  # the smaller of two neighbours keeps its cells
        left, top, right, bottom = row[1:] / stride
        if not least <= max(right - left, bottom - top) * stride < LONGEST_SIDE[level]:
            continue
        x, y = (left + right) / 2, (top + bottom) / 2
        across = (np.abs(steps - x) <= CENTRE_RADIUS) & (steps > left) & (steps < right)
        down = (np.abs(steps - y) <= CENTRE_RADIUS) & (steps > top) & (steps < bottom)
        mine = down[:, None] & across[None, :]
        mine[min(int(y), cells - 1), min(int(x), cells - 1)] = True
        labels[:, mine] = 0.0
        labels[int(row[0]), mine] = 1.0
        boxes[:, mine] = np.array([left, top, right, bottom], np.float32)[:, None]
        learns[mine] = 1.0
    return labels, boxes, learns


def make_data(count: int) -> tuple[NDArray[np.uint8], list[Targets]]:
    """Pictures (count, 256, 256, 3) of the seeds 0 to count - 1, and their targets for each level."""
    pictures = np.empty((count, SIZE, SIZE, 3), np.uint8)
    parts: list[list[tuple[NDArray[np.float32], ...]]] = [[] for _ in STRIDES]
    for seed in range(count):
        pictures[seed], objects = make_parts.sample(seed, SIZE)
        for level, kept in enumerate(parts):
            kept.append(level_targets(objects, level))
    targets = [Targets(*(torch.from_numpy(np.stack(arrays)) for arrays in zip(*kept, strict=True))) for kept in parts]
    return pictures, targets


def generalised_iou(first: Tensor, second: Tensor) -> Tensor:
    """GIoU of boxes (n, 4, m, m) left, top, right, bottom -> (n, m, m)."""
    inner_low, inner_high = torch.maximum(first[:, :2], second[:, :2]), torch.minimum(first[:, 2:], second[:, 2:])
    outer_low, outer_high = torch.minimum(first[:, :2], second[:, :2]), torch.maximum(first[:, 2:], second[:, 2:])
    inner = (inner_high - inner_low).clamp(min=0).prod(1)
    outer = (outer_high - outer_low).prod(1) + 1e-6
    union = (first[:, 2:] - first[:, :2]).prod(1) + (second[:, 2:] - second[:, :2]).prod(1) - inner + 1e-6
    return inner / union - (outer - union) / outer


def loss_of(outputs: list[Tensor], targets: list[Targets]) -> Tensor:
    """GIoU loss where a cell learns a box, plus focal cross-entropy over all cells, each per learning cell."""
    learning = torch.stack([target.learns.sum() for target in targets]).sum().clamp(min=1)
    total = torch.zeros(())
    for output, target in zip(outputs, targets, strict=True):
        centres = cell_centres(output.shape[-1])
        sides = functional.softplus(output[:, :4])
        boxes = torch.cat([centres - sides[:, :2], centres + sides[:, 2:]], 1)
        total = total + BOX_GAIN * ((1 - generalised_iou(boxes, target.boxes)) * target.learns).sum() / learning
        logits = output[:, 4:]
        probability = logits.detach().sigmoid()
        focus = torch.where(target.labels > 0, 0.75 * (1 - probability) ** 2, 0.5 * probability**2)
        entropy = functional.binary_cross_entropy_with_logits(logits, target.labels, reduction="none")
        total = total + CLASS_GAIN * (focus * entropy).sum() / learning
    return total


def train(
    pictures: NDArray[np.uint8], targets: list[Targets], epochs: int, checkpoint: Path | None, batch: int = 16
) -> Detector:
    """AdamW on a one-cycle rate; every second batch is flipped left to right. Prints a line an epoch.

    With a checkpoint file, the state is saved there after each epoch, and an interrupted run goes on from it.
    """
    torch.manual_seed(0)
    detector = Detector()
    detector.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    print(f"{sum(weight.numel() for weight in detector.parameters())} parameters", flush=True)
    steps = len(pictures) // batch
    optimiser = torch.optim.AdamW(detector.parameters(), lr=2e-3, weight_decay=1e-3)
    rate = torch.optim.lr_scheduler.OneCycleLR(optimiser, 4e-3, total_steps=epochs * steps, pct_start=0.15)
    stateful = {"detector": detector, "optimiser": optimiser, "rate": rate}
    done = 0
    if checkpoint is not None and checkpoint.is_file():
        saved = torch.load(checkpoint, weights_only=True)
        done = saved["epochs_done"]
        for key, part in stateful.items():
            part.load_state_dict(saved[key])
        print(f"goes on from {checkpoint} after epoch {done}", flush=True)
    began = time.monotonic()
    for epoch in range(done, epochs):
        order = np.random.default_rng(epoch).permutation(len(pictures))
        sum_of_losses = 0.0
        for step in range(steps):
            index = order[step * batch : (step + 1) * batch]
            images = torch.from_numpy(pictures[index]).permute(0, 3, 1, 2).float() / 255
            wanted = [target.pick(index) for target in targets]
            if step % 2:
                images, wanted = images.flip(3), [target.mirrored() for target in wanted]
            loss = loss_of(detector(images.contiguous(memory_format=torch.channels_last)), wanted)
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(detector.parameters(), 10.0)
            optimiser.step()
            rate.step()
            sum_of_losses += float(loss.detach())
        seconds = time.monotonic() - began
        if checkpoint is not None:
            states = {key: part.state_dict() for key, part in stateful.items()}
            torch.save({"epochs_done": epoch + 1, **states}, checkpoint)
        print(f"epoch {epoch + 1}/{epochs}: loss {sum_of_losses / steps:.3f}, {seconds:.0f} s", flush=True)
    return detector


def export(detector: Detector, path: Path) -> None:
    """Writes ONNX, opset 17, with Conv and BatchNormalization as separate nodes (folding is the compiler's work)."""
    model = Decoded(detector).eval()
    model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the tracing exporter is the one that keeps a static graph
        warnings.simplefilter("ignore", UserWarning)  # folding is harmless here: the model is not trained on
        torch.onnx.export(model, (torch.zeros(1, 3, SIZE, SIZE),), str(path), input_names=["images"],
                          output_names=["output0"], opset_version=17, dynamo=False,
                          training=torch.onnx.TrainingMode.PRESERVE, do_constant_folding=True)  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(description="Trains the part detector on generated pictures and exports ONNX.")
    parser.add_argument("--out", type=Path, required=True, help="the ONNX file to write")
    parser.add_argument("--count", type=int, default=3000, help="training pictures, seeds from 0 (default 3000)")
    parser.add_argument("--epochs", type=int, default=12, help="default 12")
    parser.add_argument("--checkpoint", type=Path, help="file that keeps the state, to go on from after a stop")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads (default 2)")
    options = parser.parse_args(arguments)
    if options.count < 16 or options.epochs < 1 or options.threads < 1:
        parser.error("--count must be at least 16 (one batch), --epochs and --threads at least 1")
    torch.set_num_threads(options.threads)
    began = time.monotonic()
    pictures, targets = make_data(options.count)
    print(f"{options.count} pictures made in {time.monotonic() - began:.0f} s", flush=True)
    detector = train(pictures, targets, options.epochs, options.checkpoint)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    export(detector, options.out)
    print(f"wrote {options.out}; measure it with: scripts/evaluate_parts.py --model {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
