#!/usr/bin/env python3
"""Trains the shipped part detector on generated pictures and exports it as ONNX: about 8 minutes on two cores.

Called by hand (extra `train`) when the recipe changes; what it makes is configs/models/part-inspect.onnx. Data and
network are made from fixed seeds, and the seeds of scripts/evaluate_parts.py lie outside the training seeds.
Invariant: the exported graph is the network of scripts/part_detector.py with batch 1 and nothing that depends on a run.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import make_parts
import numpy as np
import torch
from numpy.typing import NDArray
from part_detector import CLASSES, SIZE, STRIDES, Decoded, Detector, cell_centres
from torch import Tensor, nn
from torch.nn import functional

LONGEST_SIDE = (40.0, float("inf"))  # a box belongs to the first level whose limit its longer side stays below
CENTRE_RADIUS = 1.25  # cells around a box's centre that learn it
BOX_GAIN, CLASS_GAIN = 2.0, 4.0


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
    stateful: dict[str, Any] = {"detector": detector, "optimiser": optimiser, "rate": rate}
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
                          training=torch.onnx.TrainingMode.PRESERVE, do_constant_folding=True)


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
