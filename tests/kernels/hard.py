"""A trained net made hard for INT8 without changing its function, and crops of a photograph to calibrate it with."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper
from PIL import Image

ROOT = Path(__file__).parents[2]
FACE = (85, 60, 305, 280)
"""x0, y0, x1, y1 around the face of astronaut.jpg, in pixels."""


def rescaled(model: onnx.ModelProto, steps: int = 8) -> tuple[onnx.ModelProto, int]:
    """Channel c of each depthwise convolution times 2^(c mod steps), the weights of the 1x1 convolution that alone
    reads it divided by that: exact, so FP32 stays the same. Returns the number of pairs too."""
    model = onnx.ModelProto.FromString(model.SerializeToString())
    weights = {t.name: t for t in model.graph.initializer}
    weights |= {n.output[0]: n.attribute[0].t for n in model.graph.node if n.op_type == "Constant"}
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in model.graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)

    def scale(name: str, factor: np.ndarray) -> None:
        value = numpy_helper.to_array(weights[name])
        weights[name].CopyFrom(numpy_helper.from_array((value * factor).astype(value.dtype), weights[name].name))
    pairs = 0
    for node in model.graph.node:
        if node.op_type != "Conv":
            continue
        w = numpy_helper.to_array(weights[node.input[1]])
        after = readers.get(node.output[0], [])
        if w.shape[1] != 1 or w.shape[0] == 1 or len(after) != 1 or after[0].op_type != "Conv":
            continue
        factor = 2.0 ** (np.arange(len(w)) % steps)
        scale(node.input[1], factor.reshape(-1, 1, 1, 1))
        if len(node.input) > 2:
            scale(node.input[2], factor)
        scale(after[0].input[1], 1 / factor.reshape(1, -1, 1, 1))
        pairs += 1
    return model, pairs


def face_crops(folder: Path, count: int, seed: int = 0) -> Path:
    """Crops of astronaut.jpg with the whole face in them, 256 x 256 PNG."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(seed)
    with Image.open(ROOT / "configs/frames/astronaut.jpg") as photograph:
        for i in range(count):
            side = int(rng.integers(240, min(photograph.size) + 1))
            x = int(rng.integers(max(0, FACE[2] - side), min(FACE[0], photograph.width - side) + 1))
            y = int(rng.integers(max(0, FACE[3] - side), min(FACE[1], photograph.height - side) + 1))
            crop = photograph.crop((x, y, x + side, y + side)).resize((256, 256), Image.Resampling.BILINEAR)
            crop.save(folder / f"{i:03d}.png")
    return folder
