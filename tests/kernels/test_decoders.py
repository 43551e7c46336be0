"""Decoders: brute force judges the suppression, hand-made numbers the boxes, a real network the whole way."""

import json
import random
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from orind.kernels.pre import nms
from orind.kernels.pre.decode_blazeface import anchor_centres
from orind.kernels.pre.decoder import DecoderError, NonFinite, make_decoder
from orind.kernels.pre.geometry import Mapping
from orind.kernels.pre.jpeg import decode_planes
from orind.kernels.pre.nms import suppress
from orind.kernels.pre.preprocess import Preprocessor, input_table
from orind.kernels.pre.topk import softmax
from orind.kernels.spec import DecoderSpec, InputSpec, ModelSpec
from orind.kernels.spec_yaml import read_spec

CONFIGS = Path(__file__).parents[2] / "configs"
ONE_TO_ONE = Mapping(1.0, 1.0, 0, 0)
f32 = np.float32


def detect(kind, labels, **options):
    decoder = DecoderSpec(kind=kind, **options)
    return ModelSpec(name="m", task="detect", labels=labels, input=InputSpec(), decoder=decoder)


def run(decoder, outputs, mapping=ONE_TO_ONE, size=(100, 100)):
    out = np.full((decoder.rows_max, decoder.row_width), -7, f32)
    count = decoder.decode(outputs, mapping, *size, out)
    assert (out[count:] == -7).all()
    return out[:count]


# ---- suppression ----------------------------------------------------------------------------------------------------

def brute_force(boxes, scores, classes, threshold, most):
    """Pair by pair with scalars: a box stays if none that stays before it overlaps too much."""
    order = sorted(range(len(boxes)), key=lambda i: (-scores[i], i))
    kept = []
    for i in order:
        free = True
        for j in kept:
            if classes is not None and classes[i] != classes[j]:
                continue
            wide = max(f32(min(boxes[i][2], boxes[j][2]) - max(boxes[i][0], boxes[j][0])), f32(0))
            high = max(f32(min(boxes[i][3], boxes[j][3]) - max(boxes[i][1], boxes[j][1])), f32(0))
            area_i, area_j = ((b[2] - b[0]) * (b[3] - b[1]) for b in (boxes[i], boxes[j]))
            if wide * high > f32(threshold) * ((area_i + area_j) - wide * high):
                free = False
        if free:
            kept.append(i)
    return kept[:most]


@pytest.mark.parametrize("seed", range(30))
def test_suppression_equals_brute_force(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(0, 60))
    corner = rng.uniform(0, 40, (n, 2))
    boxes = np.concatenate([corner, corner + rng.uniform(1, 30, (n, 2))], axis=1).astype(f32)
    if seed % 3 == 0:
        boxes = np.round(boxes / 8) * f32(8)  # many equal boxes, also without an area
    scores = (rng.integers(0, 6, n) / 5).astype(f32)  # many ties
    classes = rng.integers(0, 3, n) if seed % 2 else None
    threshold, most = float(rng.choice([0.0, 0.3, 0.5, 1.0])), int(rng.choice([1, 5, 100]))
    assert suppress(boxes, scores, classes, threshold, most).tolist() == brute_force(
        boxes, scores, classes, threshold, most)


def test_overlap_at_the_threshold_stays_and_equal_scores_keep_the_first():
    boxes = np.array([[0, 0, 2, 1], [1, 0, 3, 1], [0, 0, 2, 1]], f32)  # overlap of the first two: exactly 1/3
    scores = np.array([0.5, 0.5, 0.5], f32)
    assert suppress(boxes, scores, None, 1 / 3 + 1e-7, 9).tolist() == [0, 1]
    assert suppress(boxes, scores, None, 1 / 3 - 1e-7, 9).tolist() == [0]
    assert suppress(boxes, scores, np.array([0, 1, 1]), 0.0, 9).tolist() == [0, 1]


def test_candidates_are_bounded_to_the_best(monkeypatch):
    monkeypatch.setattr(nms, "MAX_CANDIDATES", 3)
    boxes = np.array([[10 * i, 0, 10 * i + 5, 5] for i in range(6)], f32)
    assert suppress(boxes, np.arange(6, dtype=f32), None, 0.5, 9).tolist() == [5, 4, 3]


# ---- yolo -----------------------------------------------------------------------------------------------------------

def yolo_output():
    return np.array([  # cx, cy, w, h, two classes; an anchor a row
        [50, 40, 20, 10, 0.9, 0.1],
        [51, 40, 20, 10, 0.8, 0.1],    # goes: overlaps the first, same class
        [51, 40, 20, 10, 0.1, 0.7],    # stays: other class
        [10, 10, 8, 8, 0.25, 0.25],    # stays, at the threshold: class 0 of the tie
        [10, 90, 8, 8, 0.24, 0.0],     # below the threshold
        [90, 90, -8, 8, 0.9, 0.0],     # no positive size
        [0, 0, 0, 0, 0, 0],
    ], f32)


@pytest.mark.parametrize("transposed", [False, True])
def test_yolo_by_hand(transposed):
    output = yolo_output() if transposed else np.ascontiguousarray(yolo_output().T)
    decoder = make_decoder(detect("yolo", ("a", "b"), iou_threshold=0.5), [output.shape])
    expected = np.array([[40, 35, 60, 45, 0.9, 0], [41, 35, 61, 45, 0.7, 1], [6, 6, 14, 14, 0.25, 0]], f32)
    np.testing.assert_array_equal(run(decoder, [output]), expected)
    np.testing.assert_array_equal(run(decoder, [output[None]]), expected)
    assert (decoder.rows_max, decoder.row_width) == (100, 6)


def test_yolo_class_agnostic_and_bounded():
    output = np.ascontiguousarray(yolo_output().T)
    agnostic = make_decoder(detect("yolo", ("a", "b"), class_agnostic=True), [output.shape])
    assert run(agnostic, [output])[:, 4].tolist() == [f32(0.9), f32(0.25)]
    one = make_decoder(detect("yolo", ("a", "b"), max_detections=1), [output.shape])
    assert len(run(one, [output])) == 1 == one.rows_max


def test_boxes_go_back_through_the_letterbox_and_are_clipped():
    """1920 x 1080 in 256 x 256: scale 7.5, 56 pixels of border above."""
    output = np.array([[128, 128, 64, 64, 0.9], [2, 60, 20, 20, 0.8], [128, 20, 30, 30, 0.7], [256, 200, 20, 40, 0.6]],
                      f32)
    decoder = make_decoder(detect("yolo", ("a",)), [output.shape])
    rows = run(decoder, [output], Mapping(7.5, 7.5, 0, 56), (1920, 1080))
    np.testing.assert_array_equal(rows[:, :4], np.array(
        [[720, 300, 1200, 780], [0, 0, 90, 105], [1845, 930, 1920, 1080]], f32))  # the third lay in the border


def test_yolo_anchors_before_any_threshold():
    output = np.ascontiguousarray(yolo_output().T)
    boxes, probabilities = make_decoder(detect("yolo", ("a", "b")), [output.shape]).anchors([output])
    assert boxes[0].tolist() == [40, 35, 60, 45]
    np.testing.assert_array_equal(probabilities, yolo_output()[:, 4:])


@pytest.mark.parametrize("shapes", [[(7, 10)], [(6,)], [(6, 10), (6, 10)], []])
def test_yolo_refuses_other_shapes(shapes):
    with pytest.raises(DecoderError, match="needs one output of 6 x anchors"):
        make_decoder(detect("yolo", ("a", "b")), shapes)


# ---- blazeface ------------------------------------------------------------------------------------------------------

FACE = {"strides": (16, 32), "anchors_per_cell": (2, 6), "box_scale": 256.0, "iou_threshold": 0.3, "max_detections": 8}
LEVELS = [(512, 1), (384, 1), (512, 16), (384, 16)]


def test_anchor_centres_by_hand():
    first, second = anchor_centres(DecoderSpec(kind="blazeface", **FACE), 256, 256)
    assert len(first) == 512 and len(second) == 384
    assert first[:3].tolist() == [[8, 8], [8, 8], [24, 8]] and first[111].tolist() == [120, 56]
    assert second[5].tolist() == [16, 16] and second[6].tolist() == [48, 16] and second[-1].tolist() == [240, 240]


@pytest.mark.parametrize("form", ["levels", "levels, others first", "whole"])
def test_blazeface_by_hand(form):
    logits, regressors = np.full((896, 1), -200, f32), np.zeros((896, 16), f32)
    logits[111], regressors[111, :4] = 2.0, (3, -2, 40, 30)  # centre 120, 56
    logits[512 + 6], regressors[512 + 6, :4] = 200.0, (0, 0, 20, 20)  # centre 48, 16, score 1
    logits[300], regressors[300, :4] = 5.0, (0, 0, -4, 4)
    outputs = {"levels": [logits[:512], logits[512:], regressors[:512], regressors[512:]],
               "levels, others first": [regressors[512:], regressors[:512], logits[512:], logits[:512]],
               "whole": [regressors, logits]}[form]
    decoder = make_decoder(detect("blazeface", ("face",), **FACE), [o.shape for o in outputs], (256, 256, 3))
    rows = run(decoder, outputs, size=(256, 256))
    np.testing.assert_array_equal(rows[:, :4], np.array([[38, 6, 58, 26], [103, 39, 143, 69]], f32))
    np.testing.assert_allclose(rows[:, 4], [1.0, 1 / (1 + np.exp(-2.0))], rtol=3e-7)
    assert rows[:, 5].tolist() == [0, 0]
    assert logits[0] == -200  # outputs are the executor's: not written to


def test_blazeface_box_scale_is_a_unit():
    """On a 512 x 256 input, box_scale 256: x counts double."""
    logits, regressors = np.full((1792, 1), -200, f32), np.zeros((1792, 4), f32)
    logits[0], regressors[0] = 9.0, (1, 1, 10, 10)  # centre 8, 8
    decoder = make_decoder(detect("blazeface", ("face",), **FACE), [(1792, 1), (1792, 4)], (256, 512, 3))
    assert run(decoder, [logits, regressors])[0, :4].tolist() == [0, 4, 20, 14]


@pytest.mark.parametrize(
    "shapes", [LEVELS[:3], [*LEVELS, (512, 1)], [(896, 1)], [(895, 1), (895, 16)], [(896,), (896, 16)]])
def test_blazeface_refuses_other_shapes(shapes):
    with pytest.raises(DecoderError, match=r"needs logits \(anchors, 1\).*by level \[512, 384\]"):
        make_decoder(detect("blazeface", ("face",), **FACE), shapes)


@pytest.fixture(scope="module")
def blazeface():
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(CONFIGS / "models" / "blazeface-back.onnx", options)


@pytest.mark.parametrize("name", sorted(json.loads((CONFIGS / "frames" / "expected.json").read_text())["frames"]))
def test_faces_on_the_shipped_photographs(blazeface, name):
    """JPEG, preprocessing and decoding are ours, the network is run by onnxruntime."""
    expected = json.loads((CONFIGS / "frames" / "expected.json").read_text())
    spec = read_spec(CONFIGS / "models" / "blazeface-back.yaml")
    picture = decode_planes((CONFIGS / "frames" / name).read_bytes(), np.empty(4 << 20, np.uint8))
    frame = np.empty((1, 256, 256, 3), f32)
    mapping = Preprocessor(spec.input, (1, 256, 256, 3), input_table(spec.input, "float32")).run(picture, frame[0])
    outputs = [output[0] for output in blazeface.run(None, {"input:0": frame})]
    decoder = make_decoder(spec, [output.shape for output in outputs], (256, 256, 3))
    rows = run(decoder, outputs, mapping, (picture.width, picture.height))
    known = expected["frames"][name]
    for face in known["faces"]:
        overlaps = [iou(row, face["box"]) for row in rows]
        assert max(overlaps, default=0) >= expected["iou_min"]
        assert abs(rows[int(np.argmax(overlaps)), 4] - face["score"]) < 0.03
    for row in rows:
        assert any(iou(row, item["box"]) >= expected["iou_min"] for item in known["faces"] + known["may_find"])


def iou(a, b):
    wide, high = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    common = max(wide, 0) * max(high, 0)
    return common / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - common)


# ---- classification, tensor -----------------------------------------------------------------------------------------

def classify(count, **decoder):
    return ModelSpec(name="m", task="classify", labels=tuple(f"l{i}" for i in range(count)), input=InputSpec(),
                     decoder=DecoderSpec(kind="topk", **decoder))


def test_topk_by_hand_ties_go_to_the_lower_class():
    decoder = make_decoder(classify(5, top_k=3), [(5, 1, 1)])
    rows = run(decoder, [np.array([0.1, 0.3, 0.5, 0.3, 0.5], f32).reshape(5, 1, 1)])
    assert rows.tolist() == [[2, 0.5], [4, 0.5], [1, f32(0.3)]]
    assert (make_decoder(classify(2), [(2,)]).rows_max, decoder.rows_max) == (2, 3)


@pytest.mark.parametrize("size", [1, 3, 1000, 65_536])
def test_softmax_against_float64_and_in_any_order(size):
    rng = np.random.default_rng(size)
    x = rng.normal(0, 8, size).astype(f32)
    exact = np.exp(x.astype(float) - x.max())
    np.testing.assert_allclose(softmax(x), exact / exact.sum(), rtol=6e-6, atol=1e-30)  # x - max is rounded
    order = rng.permutation(size)
    np.testing.assert_array_equal(softmax(x[order]), softmax(x)[order])


def test_activations():
    values = np.array([1.0, -2.0, 0.5], f32)
    soft = run(make_decoder(classify(3, activation="softmax"), [(3,)]), [values])
    np.testing.assert_allclose(soft[:, 1].sum(), 1.0, rtol=1e-6)
    curve = run(make_decoder(classify(3, activation="sigmoid", top_k=1), [(3,)]), [values])
    np.testing.assert_allclose(curve, [[0, 0.7310586]], rtol=1e-6)


def test_topk_refuses_other_shapes():
    with pytest.raises(DecoderError, match="needs one output of 5 values"):
        make_decoder(classify(5), [(6,)])


def test_tensor_has_no_rows_but_must_be_finite():
    decoder = make_decoder(ModelSpec.for_tensor("m"), [(2, 2)])
    assert run(decoder, [np.zeros((2, 2), f32)]).shape == (0, 0)
    with pytest.raises(NonFinite, match="output 0"):
        run(decoder, [np.full((2, 2), np.nan, f32)])


# ---- what is not an answer ------------------------------------------------------------------------------------------

SOME = [
    (detect("yolo", ("a", "b")), [(6, 20)]),
    (detect("blazeface", ("face",), **FACE), LEVELS),
    (classify(7, activation="softmax"), [(7,)]),
]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(("spec", "shapes"), SOME, ids=["yolo", "blazeface", "topk"])
def test_one_number_that_is_not_finite_anywhere_is_an_error(spec, shapes, bad):
    decoder = make_decoder(spec, shapes)
    random_ = random.Random(str(bad))
    for number, shape in enumerate(shapes):
        outputs = [np.zeros(s, f32) for s in shapes]
        outputs[number].reshape(-1)[random_.randrange(int(np.prod(shape)))] = bad
        with pytest.raises(NonFinite, match=f"output {number} has a value that is not finite"):
            run(decoder, outputs)


@pytest.mark.parametrize(("spec", "shapes"), SOME[:2], ids=["yolo", "blazeface"])
def test_boxes_beyond_float32_are_an_error_not_an_empty_list(spec, shapes):
    outputs = [np.full(shape, 3e38, f32) for shape in shapes]
    with pytest.raises(NonFinite, match="a box reaches beyond 1000000 pixels"):
        run(make_decoder(spec, shapes), outputs)


def test_outputs_of_another_number_size_or_type_are_refused():
    decoder = make_decoder(SOME[0][0], SOME[0][1])
    for outputs, words in (([], "0 outputs given, the model has 1"), ([np.zeros((6, 21), f32)], r"shape \(6, 21\)"),
                           ([np.zeros((6, 20))], "is float64")):
        with pytest.raises(DecoderError, match=words):
            run(decoder, outputs)
