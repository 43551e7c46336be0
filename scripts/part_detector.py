"""The network of the part detector: CSP backbone, two-level neck, anchor-free heads, about 260,000 parameters.

Imported by scripts/train_parts.py, which trains it and exports `Decoded`. Invariant: every shape is a constant, so that
the exported graph has no shape arithmetic, and boxes leave it in pixels of the SIZE x SIZE input.
"""

from __future__ import annotations

import make_parts
import torch
from torch import Tensor, nn
from torch.nn import functional

SIZE = 256
STRIDES = (8, 16)
WIDTHS = (12, 24, 48, 96)
CLASSES = len(make_parts.LABELS)


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
