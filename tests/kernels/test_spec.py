"""The spec: what is accepted, what is refused and in which words, and the round trip through JSON."""

import dataclasses
import json
from pathlib import Path

import pytest

from orind.kernels.spec import DecoderSpec, InputSpec, ModelSpec, SpecError
from orind.kernels.spec_yaml import MAX_FILE_BYTES, read_spec

PARTS = b"""\
name: part-inspect
task: detect
labels: [scratch, pit, stain, chip]
batch: [1, 4]
input:
  colour: rgb
  resize: letterbox
  mean: 0
  scale: 1/255
decoder:
  kind: yolo
  score_threshold: 0.3
"""


@pytest.fixture
def parse_spec(tmp_path, monkeypatch):
    """Reads a text as the file m.yaml of the working folder."""
    monkeypatch.chdir(tmp_path)

    def parse(text):
        Path("m.yaml").write_bytes(text)
        return read_spec(Path("m.yaml"))

    return parse


def test_yaml_to_spec_and_back_through_json(parse_spec):
    spec = parse_spec(PARTS)
    assert spec == ModelSpec(
        name="part-inspect", task="detect", labels=("scratch", "pit", "stain", "chip"), batch=(1, 4),
        input=InputSpec(colour="rgb", resize="letterbox", mean=(0.0,), scale=(1 / 255,)),
        decoder=DecoderSpec(kind="yolo", score_threshold=0.3))
    assert ModelSpec.from_json(spec.to_json()) == spec
    assert ModelSpec.from_json(ModelSpec.for_tensor("bench").to_json()) == ModelSpec(name="bench", task="tensor")


def test_map_and_regress_need_no_labels(parse_spec):
    spec = parse_spec(b"name: f\ntask: map\ninput: {scale: 1}\ndecoder: {kind: map, output: 2, activation: sigmoid}\n")
    assert spec.decoder == DecoderSpec("map", output=2, activation="sigmoid") and spec.labels == ()
    assert ModelSpec.from_json(spec.to_json()) == spec
    spec = parse_spec(b"name: lines\ntask: regress\ninput: {}\n")
    assert spec.task == "regress" and spec.decoder.kind == "none" and spec.input == InputSpec()


def test_blazeface_spec_round_trip(parse_spec):
    text = b"""
name: face
task: detect
labels: [face]
input: {mean: 127.5, scale: 1/127.5}
decoder: {kind: blazeface, strides: [16, 32], anchors_per_cell: [2, 6], box_scale: 256, iou_threshold: 0.3}
"""
    spec = parse_spec(text)
    assert spec.decoder.strides == (16, 32) and spec.decoder.box_scale == 256.0
    assert spec.input is not None and spec.input.scale == (1 / 127.5,)
    assert ModelSpec.from_json(spec.to_json()) == spec


def test_all_mistakes_at_once_each_with_line_and_nearest_key(parse_spec):
    text = b"""\
name: 7
task: detect
lables: [a]
input:
  color: rgb
  scale: [1, x]
decoder:
  kind: yolo
  top_k: yes
  score_threshold: nought
"""
    with pytest.raises(SpecError) as caught:
        parse_spec(text)
    lines = str(caught.value).splitlines()
    assert len(lines) == 6
    assert "m.yaml:1: name: must be text, not 7 (put it in quotes)" in lines
    assert "m.yaml:3: lables: unknown key, did you mean labels?" in lines
    assert "m.yaml:5: input.color: unknown key, did you mean colour?" in lines
    assert "m.yaml:6: input.scale[1]: must be a number or a fraction such as 1/255, not 'x'" in lines
    assert "m.yaml:9: decoder.top_k: must be a whole number, not True" in lines
    assert "m.yaml:10: decoder.score_threshold: must be a number or a fraction such as 1/255, not 'nought'" in lines


def test_what_does_not_fit_together_names_every_line(parse_spec):
    text = PARTS.replace(b"kind: yolo", b"kind: topk").replace(b"[1, 4]", b"[4, 1]")
    text = text.replace(b"mean: 0", b"mean: [0, 1]")
    with pytest.raises(SpecError) as caught:
        parse_spec(text)
    assert str(caught.value).splitlines() == [
        "m.yaml:4: batch: must be 1 to 16 different sizes between 1 and 256, ascending",
        "m.yaml:11: decoder.kind: task detect needs yolo or blazeface, not 'topk'",
        "m.yaml:8: input.mean: must be one number or 3, not 2",
    ]


@pytest.mark.parametrize(("text", "words"), [
    (b"name: [", "m.yaml:1: not valid YAML"),
    (b"- a\n- b\n", "m.yaml:1: expected a table of `key: value` lines"),
    (b"", "m.yaml:1: expected a table"), (b"x", "expected a table"),
    (b"task: tensor\n", "m.yaml:1: name: is missing"),
    (b"name: a\nname: b\ntask: tensor\n", "m.yaml:2: duplicate key 'name' (also in line 1)"),
    (b"name: a\ntask: tensor\ndecoder:\n  top_k: 1\n  top_k: 2\n", "m.yaml:5: duplicate key 'top_k'"),
    (b"name: a\ntask: tensor\ndecoder: 5\n", "m.yaml:3: decoder: must be a mapping, not 5"),
    (b"name: a\ntask: tensor\nzzzz: 5\n", "m.yaml:3: zzzz: unknown key; known here: name, task"),
    (b"name: a\ntask: tensor\ninput: {}\n", "m.yaml:3: input: task tensor has no preprocessing"),
    (b"name: a\ntask: classify\nlabels: [no, yes]\n", "m.yaml:3: labels[0]: must be text, not False (put it in"),
    (b"name: a\ntask: fly\n", "m.yaml:2: task: must be one of detect, classify, map, regress, tensor, not 'fly'"),
    (b"name: a\ntask: detect\nlabels: [x]\ndecoder: {kind: yolo}\n", "input: is missing"),
    (b"name: a\ntask: detect\ninput: {scale: 1/0}\n", "must be a number or a fraction"),
    (b"name: a\x00\n", "not valid YAML"),
    (b"name: \xff\xfe\xfd\n", "not UTF-8"),
    (b"name: a\nbatch: [1,\n  " + b"1" * 5000 + b"]\n", "m.yaml:3: not valid YAML: a number of too many digits"),
    (b"? [a, b]\n: c\n", "m.yaml:1: a key must be a word"),
    pytest.param(b"[" * 5000, "not valid YAML", id="deep"),
])
def test_refused(parse_spec, text, words):
    with pytest.raises(SpecError) as caught:
        parse_spec(text)
    assert words in str(caught.value)


TOPK = b"name: a\ntask: classify\nlabels: [x]\ninput: {}\ndecoder:\n  kind: topk\n"


def ignored(line, key, kind, known):
    return f"m.yaml:{line}: decoder.{key}: has no meaning for kind {kind}; leave it out (it has {known})"


@pytest.mark.parametrize(("text", "words"), [
    (PARTS + b"  activation: sigmoid\n  output: 1\n  strides: [8]\n", [
        ignored(line, key, "yolo", "score_threshold, iou_threshold, max_detections, class_agnostic")
        for line, key in ((13, "activation"), (15, "strides"), (14, "output"))]),
    (TOPK + b"  score_threshold: 0.5\n", [ignored(7, "score_threshold", "topk", "top_k, activation")]),
    (TOPK + b"  top_k: 0\n  output: 1\n", ["m.yaml:7: decoder.top_k: must be between 1 and 65536",
                                          ignored(8, "output", "topk", "top_k, activation")]),
    (b"name: a\ntask: tensor\ndecoder: {top_k: 3}\n", [ignored(3, "top_k", "none", "no other keys")]),
])
def test_keys_that_the_kind_ignores(parse_spec, text, words):
    with pytest.raises(SpecError) as caught:
        parse_spec(text)
    assert str(caught.value).splitlines() == words


@pytest.mark.parametrize(("mean", "scale", "words"), [
    (b"0", b"1.0e-300", "m.yaml:9: input.scale: makes every pixel 0.0 in float32"),
    (b"0", b"[1, 1, 1.0e-48]", "m.yaml:9: input.scale: makes every pixel 0.0 in float32"),
    (b"0", b"1.0e+37", "m.yaml:9: input.scale: gives pixels values up to 2.55e+39: more than float32 holds"),
    (b"0", b"1.0e+300", "m.yaml:9: input.scale: gives pixels values up to 2.5"),
    (b"1.0e+300", b"1", "m.yaml:8: input.mean: gives pixels values up to 1e+300: more than float32 holds"),
    (b"[0, 1.0e+12, 0]", b"1", "m.yaml:8: input.mean: makes every pixel -999999995904.0 in float32"),
])
def test_numbers_that_float32_does_not_hold(parse_spec, mean, scale, words):
    with pytest.raises(SpecError) as caught:
        parse_spec(PARTS.replace(b"mean: 0", b"mean: " + mean).replace(b"scale: 1/255", b"scale: " + scale))
    assert str(caught.value).startswith(words)


def test_the_smallest_numbers_that_float32_holds_are_taken(parse_spec):
    spec = parse_spec(PARTS.replace(b"scale: 1/255", b"scale: -1.0e-38").replace(b"mean: 0", b"mean: 300"))
    assert spec.input is not None and spec.input.scale == (-1e-38,)


def test_many_mistakes_are_bounded(parse_spec):
    text = b"name: a\ntask: tensor\nlabels:\n" + b"- 1\n" * 400
    with pytest.raises(SpecError, match="and 350 more"):
        parse_spec(text)


def test_nested_aliases_end_quickly(parse_spec):
    text = b"name: a\ntask: tensor\na0: &a0 {x: 1}\n"
    text += b"".join(b"a%d: &a%d {x: *a%d, y: *a%d}\n" % (n, n, n - 1, n - 1) for n in range(1, 40))
    with pytest.raises(SpecError, match=r"m\.yaml:4: aliases have no place in a spec"):
        parse_spec(text)


def test_files(tmp_path):
    with pytest.raises(SpecError, match="cannot be read: No such file"):
        read_spec(tmp_path / "none.yaml")
    path = tmp_path / "big.yaml"
    path.write_bytes(b"#" * (MAX_FILE_BYTES + 1))
    with pytest.raises(SpecError, match="larger than"):
        read_spec(path)
    path.write_bytes(PARTS)
    assert read_spec(path).name == "part-inspect"


GOOD = ModelSpec(name="a", task="detect", labels=("x",), input=InputSpec(), decoder=DecoderSpec(kind="yolo"))
FACE = DecoderSpec(kind="blazeface", strides=(16, 32), anchors_per_cell=(2, 6), box_scale=256.0)


@pytest.mark.parametrize(("change", "words"), [
    ({"name": ""}, "name: must be 1 to 64"),
    ({"name": "a/b"}, "name: must be"),
    ({"batch": ()}, "batch: must be"),
    ({"batch": (0,)}, "batch: must be"),
    ({"labels": ()}, "labels: task detect needs a label"),
    ({"labels": ("x", "x")}, "labels: must be at most"),
    ({"labels": ("",)}, "labels: must be at most"),
    ({"input": InputSpec(colour="cmyk")}, "input.colour: must be one of rgb, bgr, mono"),
    ({"input": InputSpec(scale=(0.0,))}, "input.scale: must not be 0"),
    ({"input": InputSpec(mean=(float("nan"),))}, "input.mean: must be finite"),
    ({"input": InputSpec(resize="crop")}, "input.resize: must be one of"),
    ({"input": InputSpec(matrix="bt2020")}, "input.matrix: must be one of"),
    ({"input": InputSpec(range="video")}, "input.range: must be one of"),
    ({"decoder": DecoderSpec(kind="ssd")}, "decoder.kind: must be one of"),
    ({"decoder": DecoderSpec(kind="yolo", score_threshold=1.5)}, "decoder.score_threshold: must be between 0 and 1"),
    ({"decoder": DecoderSpec(kind="yolo", iou_threshold=float("nan"))}, "decoder.iou_threshold: must be"),
    ({"decoder": DecoderSpec(kind="yolo", max_detections=0)}, "decoder.max_detections: must be"),
    ({"decoder": DecoderSpec(kind="yolo", top_k=0)}, "decoder.top_k: must be"),
    ({"decoder": DecoderSpec(kind="yolo", activation="tanh")}, "decoder.activation: must be one of"),
    ({"decoder": dataclasses.replace(FACE, strides=())}, "decoder.strides: blazeface needs strides"),
    ({"decoder": dataclasses.replace(FACE, strides=(0, 32))}, "decoder.strides: must be between"),
    ({"decoder": dataclasses.replace(FACE, anchors_per_cell=(2, 0))}, "decoder.anchors_per_cell: must be"),
    ({"decoder": dataclasses.replace(FACE, box_scale=0.0)}, "decoder.box_scale: must be the side"),
    ({"decoder": FACE, "labels": ("a", "b")}, "labels: blazeface has one class"),
    ({"task": "map"}, "decoder.kind: task map needs map, not 'yolo'"),
    ({"task": "map", "decoder": DecoderSpec("map"), "input": None}, "input: is missing"),
    ({"task": "map", "decoder": DecoderSpec("map", activation="softmax")}, "decoder.activation: of a map must be none"),
    ({"task": "map", "decoder": DecoderSpec("map", output=-1)}, "decoder.output: must be between 0 and 63"),
    ({"task": "regress"}, "decoder.kind: task regress needs none, not 'yolo'"),
    ({"task": "regress", "decoder": DecoderSpec(), "input": None}, "input: is missing"),
])
def test_impossible_specs_do_not_exist(change, words):
    with pytest.raises(SpecError) as caught:
        dataclasses.replace(GOOD, **change)
    assert words in str(caught.value)


@pytest.mark.parametrize(("text", "words"), [
    ("{", "spec is not JSON"),
    ("[" * 100_000, "spec is not JSON"),
    ("[]", "spec must be an object, not list"),
    ('{"name":"a","task":"tensor","colour":1}', "spec has unknown keys colour"),
    ('{"name":"a"}', "spec is incomplete"),
    ('{"name":1,"task":"tensor"}', "spec.name must be of type str, not int"),
    ('{"name":"a","task":"tensor","batch":1}', "spec.batch must be a list"),
    ('{"name":"a","task":"tensor","batch":[true]}', "spec.batch must be of type int, not bool"),
    ('{"name":"a","task":"tensor","decoder":{"kinds":"none"}}', "spec.decoder has unknown keys kinds"),
    ('{"name":"a","task":"tensor","decoder":{"top_k":5,"iou_threshold":"x"}}', "spec.decoder.iou_threshold must be"),
])
def test_foreign_json_is_refused(text, words):
    with pytest.raises(SpecError) as caught:
        ModelSpec.from_json(text)
    assert words in str(caught.value)


def test_json_is_plain():
    assert json.loads(GOOD.to_json())["decoder"]["kind"] == "yolo"
