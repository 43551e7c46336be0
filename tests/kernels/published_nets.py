"""ResNet50 v1.5 and YOLOv5s 6.x as lists of layers, written from their published architectures, and as INT8 programs.

Stems are in the space-to-depth form that a GPU gets (preprocessing emits 16 channels): 7x7 stride 2 on 3 channels is
4x4 stride 1 on 12, 6x6 stride 2 is 3x3 stride 1. Only shapes matter here: there are no weights.
"""

from __future__ import annotations

from dataclasses import dataclass

from orind.kernels.ir.program import Program, Tensor
from orind.kernels.ir.steps import ActivationF32, AveragePoolI8, ConvI8, MaxPool, Step, Upsample


@dataclass(frozen=True)
class Layer:
    """`size`: input height and width; `kind` conv, max, average, upsample; `activation` relu, silu or none."""

    name: str
    size: int
    channels: int
    filters: int
    kernel: int
    stride: int
    residual: bool = False
    activation: str = "relu"
    kind: str = "conv"

    @property
    def out(self) -> int:
        if self.kind == "average":
            return 1
        return self.size * 2 if self.kind == "upsample" else -(-self.size // self.stride)


def resnet50() -> list[Layer]:
    """He et al. 2015, table 1, with the stride in the 3x3 (v1.5, as MLPerf runs it)."""
    layers = [Layer("conv1", 112, 12, 64, 4, 1), Layer("pool1", 112, 64, 64, 3, 2, kind="max")]
    size, channels = 56, 64
    for stage, (width, blocks) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3)), 2):
        for block in range(blocks):
            stride = 2 if block == 0 and stage > 2 else 1
            name = f"conv{stage}_{block + 1}"
            layers += [Layer(f"{name}.a", size, channels, width, 1, 1),
                       Layer(f"{name}.b", size, width, width, 3, stride)]
            if block == 0:
                layers.append(Layer(f"{name}.projection", size, channels, 4 * width, 1, stride, activation="none"))
            size //= stride
            layers.append(Layer(f"{name}.c", size, width, 4 * width, 1, 1, residual=True))
            channels = 4 * width
    return [*layers, Layer("pool5", 7, 2048, 2048, 7, 1, kind="average"),
            Layer("fc", 1, 2048, 1000, 1, 1, activation="none")]


def yolov5s(size: int, merged: bool) -> list[Layer]:
    """models/yolov5s.yaml of ultralytics/yolov5 v6 (depth 0.33, width 0.5). `merged`: cv1 and cv2 of a C3, two 1x1 on
    one input, are one layer. Concats cost nothing: producers write their slices."""
    layers: list[Layer] = []

    def conv(name: str, size: int, channels: int, filters: int, kernel: int = 1, stride: int = 1,
             residual: bool = False, activation: str = "silu") -> int:
        layers.append(Layer(name, size, channels, filters, kernel, stride, residual, activation))
        return layers[-1].out

    def c3(name: str, size: int, channels: int, filters: int, depth: int, shortcut: bool = True) -> None:
        half = filters // 2
        if merged:
            conv(f"{name}.cv1+cv2", size, channels, filters)
        else:
            conv(f"{name}.cv1", size, channels, half)
            conv(f"{name}.cv2", size, channels, half)
        for i in range(depth):
            conv(f"{name}.m{i}.cv1", size, half, half)
            conv(f"{name}.m{i}.cv2", size, half, half, 3, residual=shortcut)
        conv(f"{name}.cv3", size, filters, filters)

    p2 = conv("1", conv("0", size // 2, 12, 32, 3), 32, 64, 3, 2)
    c3("2", p2, 64, 64, 1)
    p3 = conv("3", p2, 64, 128, 3, 2)
    c3("4", p3, 128, 128, 2)
    p4 = conv("5", p3, 128, 256, 3, 2)
    c3("6", p4, 256, 256, 3)
    p5 = conv("7", p4, 256, 512, 3, 2)
    c3("8", p5, 512, 512, 1)
    conv("9.cv1", p5, 512, 256)
    layers.extend(Layer(f"9.m{i}", p5, 256, 256, 5, 1, kind="max") for i in range(3))
    conv("9.cv2", p5, 1024, 512)
    conv("10", p5, 512, 256)
    layers.append(Layer("11", p5, 256, 256, 1, 1, kind="upsample"))
    c3("13", p4, 512, 256, 1, False)
    conv("14", p4, 256, 128)
    layers.append(Layer("15", p4, 128, 128, 1, 1, kind="upsample"))
    c3("17", p3, 256, 128, 1, False)
    conv("18", p3, 128, 128, 3, 2)
    c3("20", p4, 256, 256, 1, False)
    conv("21", p4, 256, 256, 3, 2)
    c3("23", p5, 512, 512, 1, False)
    for level, (side, channels) in enumerate(((p3, 128), (p4, 256), (p5, 512))):
        conv(f"24.m{level}", side, channels, 255, activation="none")
    return layers


def program_of(layers: list[Layer], batch: int = 1, fused: bool = True) -> Program:
    """An INT8 program with one step a layer, and one more for each SiLU unless `fused`. Offsets are not assigned.

    An unfused SiLU reads float16: with Q/DQ nodes where TensorRT wants them there is none between a convolution and
    its activation, and the published engine is built with half precision allowed.
    """
    tensors: dict[str, Tensor] = {}
    steps: list[Step] = []

    def tensor(name: str, side: int, channels: int, dtype: str = "int8") -> str:
        pitch = -(-channels // 16) * 16
        size = side * side * pitch * (2 if dtype == "float16" else 1)
        tensors[name] = Tensor(name, dtype, "nhwc", (side, side, channels), 0, size, 1.0, True, pitch, 0, pitch,
                               ((0, channels),))
        return name

    for layer in layers:
        alone = layer.activation == "silu" and layer.kind == "conv" and not fused
        x = tensor(f"{layer.name}.x", layer.size, layer.channels)
        y = tensor(f"{layer.name}.y", layer.out, layer.filters, "float16" if alone else "int8")
        pads, kernel, stride = (0, 0, 0, 0), (layer.kernel, layer.kernel), (layer.stride, layer.stride)
        if layer.kind == "max":
            steps.append(MaxPool(layer.name, x, y, kernel, stride, pads, (1, 1)))
        elif layer.kind == "average":
            steps.append(AveragePoolI8(layer.name, x, y, "", kernel, stride, pads))
        elif layer.kind == "upsample":
            steps.append(Upsample(layer.name, x, y, (2, 2)))
        else:
            residual = tensor(f"{layer.name}.r", layer.out, layer.filters) if layer.residual else ""
            table = "t" if layer.activation == "silu" and fused else ""
            steps.append(ConvI8(layer.name, x, y, "w", "b", "m", kernel, stride, pads, (1, 1), 1, table=table,
                                residual=residual))
        if alone:
            z = tensor(f"{layer.name}.z", layer.out, layer.filters)
            steps.append(ActivationF32(f"{layer.name}.silu", y, z, "silu"))
    return Program(batch, 0, (), (), tensors, tuple(steps))
