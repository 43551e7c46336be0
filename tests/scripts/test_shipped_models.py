"""The shipped models and photographs are what their cards say, judged by ONNX Runtime and Pillow alone."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
MODELS, FRAMES = CONFIGS / "models", CONFIGS / "frames"
EXPECTED = json.loads((FRAMES / "expected.json").read_text(encoding="utf-8"))
SIDE = 256


@pytest.mark.parametrize("name", ["part-inspect", "blazeface-back"])
def test_the_card_names_the_very_file(name: str) -> None:
    data = (MODELS / f"{name}.onnx").read_bytes()
    card = (MODELS / f"{name}.md").read_text(encoding="utf-8")
    assert f"{len(data):,} bytes, sha256 `{hashlib.sha256(data).hexdigest()}`" in card


def test_part_inspect_has_the_form_that_the_card_promises() -> None:
    model = onnx.load(str(MODELS / "part-inspect.onnx"))
    onnx.checker.check_model(model, full_check=True)
    kinds = [node.op_type for node in model.graph.node]
    assert kinds.count("Conv") == 32 and kinds.count("BatchNormalization") == 28
    assert "Shape" not in kinds
    assert [(opset.domain, opset.version) for opset in model.opset_import] == [("", 17)]
    ends = [(end.name, [dim.dim_value for dim in end.type.tensor_type.shape.dim])
            for end in (*model.graph.input, *model.graph.output)]
    assert ends == [("images", [1, 3, 256, 256]), ("output0", [1, 8, 1280])]


@pytest.mark.parametrize(("name", "sampling"), [
    ("astronaut.jpg", [(2, 2), (1, 1), (1, 1)]), ("astronaut-pair.jpg", [(2, 1), (1, 1), (1, 1)]),
    ("camera.jpg", [(1, 1)]), ("coffee.jpg", [(2, 1), (1, 1), (1, 1)]),
    ("chelsea.jpg", [(2, 2), (1, 1), (1, 1)]), ("rocket.jpg", [(1, 1), (1, 1), (1, 1)]),
])
def test_frames_are_coded_as_their_list_says(name: str, sampling: list[tuple[int, int]]) -> None:
    with Image.open(FRAMES / name) as picture:
        assert isinstance(picture, JpegImageFile)
        assert [layer[1:3] for layer in picture.layer] == sampling
        size = f"{picture.width} x {picture.height}"
    listed = (FRAMES / "SOURCES.md").read_text(encoding="utf-8").splitlines()
    line = next(text for text in listed if f"| {name} |" in text)
    assert size in line
    assert re.search("public domain|CC0", line)


def test_every_frame_has_an_expectation_and_all_are_small() -> None:
    names = sorted(path.name for path in FRAMES.glob("*.jpg"))
    assert names == sorted(EXPECTED["frames"])
    assert sum((FRAMES / name).stat().st_size for name in names) < 1_500_000


@pytest.fixture(scope="module")
def session() -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(MODELS / "blazeface-back.onnx"), options, ["CPUExecutionProvider"])


@pytest.mark.parametrize("name", sorted(EXPECTED["frames"]))
def test_faces_are_where_the_list_says(session: onnxruntime.InferenceSession, name: str) -> None:
    rows = find_faces(session, FRAMES / name)
    rows = rows[rows[:, 4] >= EXPECTED["score_threshold"]]
    for face in EXPECTED["frames"][name]["faces"]:
        near = [row for row in rows if overlap(row[:4], face["box"]) >= EXPECTED["iou_min"]]
        assert near and max(row[4] for row in near) == pytest.approx(face["score"], abs=0.03)
    known = [entry["box"] for entries in EXPECTED["frames"][name].values() for entry in entries]
    for row in rows:
        assert any(overlap(row[:4], box) >= 0.5 for box in known), row


def find_faces(session: onnxruntime.InferenceSession, path: Path) -> np.ndarray:
    """Rows x1, y1, x2, y2, score of all 896 anchors in pixels of the picture: blazeface-back.md, word for word."""
    with Image.open(path) as picture:
        scale = SIDE / max(picture.size)
        width, height = round(picture.width * scale), round(picture.height * scale)
        left, top = (SIDE - width) // 2, (SIDE - height) // 2
        board = Image.new("RGB", (SIDE, SIDE), (114, 114, 114))
        board.paste(picture.convert("RGB").resize((width, height), Image.Resampling.BILINEAR), (left, top))
    values = (np.asarray(board, np.float32) - np.float32(127.5)) / np.float32(127.5)
    outputs = session.run(["Identity:0", "Identity_1:0", "Identity_2:0", "Identity_3:0"], {"input:0": values[None]})
    rows = []
    for logits, regressors, stride, anchors in ((outputs[0], outputs[2], 16, 2), (outputs[1], outputs[3], 32, 6)):
        cells = SIDE // stride
        for row in range(cells):
            for column in range(cells):
                for anchor in range(anchors):
                    index = (row * cells + column) * anchors + anchor
                    score = 1 / (1 + np.exp(-np.clip(float(logits[0, index, 0]), -100, 100)))
                    x, y, w, h = (float(value) for value in regressors[0, index, :4])
                    x, y = x + (column + 0.5) * stride - left, y + (row + 0.5) * stride - top
                    box = np.array([x - w / 2, y - h / 2, x + w / 2, y + h / 2]) / scale
                    rows.append([*box, score])
    return np.array(rows)


def overlap(first: Any, second: Any) -> float:
    """Intersection over union of two boxes, corners x1, y1, x2, y2."""
    width = max(0.0, min(first[2], second[2]) - max(first[0], second[0]))
    height = max(0.0, min(first[3], second[3]) - max(first[1], second[1]))
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (first, second)]
    return float(width * height / (sum(areas) - width * height))
