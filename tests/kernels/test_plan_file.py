"""The plan's container: alignment, the safetensors library as a judge, and every way in which a file can be wrong."""

import json
import os
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from orind.kernels.plan import file as plan_file
from orind.kernels.plan import memfd as plan_memfd
from orind.kernels.plan.file import PlanFile, write_plan
from orind.kernels.plan.layout import MAX_HEADER_BYTES, PlanError
from orind.kernels.plan.memfd import seal_into_memfd

TENSORS = {
    "a.w": np.arange(37, dtype=np.int8),
    "b.w": np.arange(300, dtype=np.float32).reshape(3, 100),
    "c.empty": np.zeros((0, 4), np.int32),
    "d.scalar": np.array(2.5, np.float64),
    "e.lut": np.arange(1024, dtype=np.int16),
    "f.half": np.arange(5, dtype=np.float16),
    "g.flags": np.array([True, False]),
}


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "m.plan"
    write_plan(path, TENSORS, {"spec": '{"a":1}', "program": "ü" * 50})
    return path


def _header(data):
    (length,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8 : 8 + length]), 8 + length


def _rewrite(path, change):
    """The same file with a changed header, as a hostile writer would make it."""
    data = path.read_bytes()
    header, base = _header(data)
    change(header)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % 256)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[base:])


def test_round_trip_aligned_zero_copy_read_only(path):
    with PlanFile.open_path(path) as plan:
        plan.verify()
        assert list(plan.tensors) == list(TENSORS)
        for name, expected in TENSORS.items():
            array = plan.tensors[name]
            assert array.dtype == expected.dtype and array.shape == expected.shape
            np.testing.assert_array_equal(array, expected)
            assert array.size == 0 or array.ctypes.data % 256 == 0
            assert not array.flags.writeable and not array.flags.owndata
        assert plan.metadata["spec"] == '{"a":1}' and plan.metadata["program"] == "ü" * 50
        assert plan.metadata["format"] == "orind-plan-1"
        assert plan.size == path.stat().st_size
        del array


def test_hash_is_of_all_bytes_before_it(path):
    import hashlib

    data = path.read_bytes()
    expected = hashlib.sha256(data[:-32])
    assert data[-32:] == expected.digest()
    with PlanFile.open_path(path) as plan:
        assert plan.sha256 == expected.hexdigest()
    assert write_plan(path, TENSORS, {"spec": '{"a":1}', "program": "ü" * 50}) == expected.hexdigest()


def test_big_endian_and_strided_arrays_are_stored_right(tmp_path):
    path = tmp_path / "m.plan"
    write_plan(path, {"x": np.arange(6, dtype=">i4"), "y": np.arange(12, dtype=np.int8).reshape(3, 4).T}, {})
    with PlanFile.open_path(path) as plan:
        assert plan.tensors["x"].tolist() == [0, 1, 2, 3, 4, 5]
        assert plan.tensors["y"].tolist() == [[0, 4, 8], [1, 5, 9], [2, 6, 10], [3, 7, 11]]


def test_safetensors_library_reads_it(path):
    read = load_file(path)
    for name, expected in TENSORS.items():
        np.testing.assert_array_equal(read[name], expected)
    with safe_open(path, "np") as file:
        assert file.metadata()["spec"] == '{"a":1}'


def test_arrays_outlive_close_safely(path):
    plan = PlanFile.open_path(path)
    held = plan.tensors["a.w"]
    plan.close()
    plan.close()
    assert held.tolist() == list(range(37)) and not plan.tensors
    with pytest.raises(ValueError, match="read-only"):
        held[0] = 1


def test_write_is_whole_or_not_at_all(path, monkeypatch):
    before = path.read_bytes()

    def fails(fd):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(plan_file.os, "fsync", fails)
    with pytest.raises(OSError, match="No space left"):
        write_plan(path, {"x": np.zeros(4)}, {})
    assert path.read_bytes() == before
    assert [item.name for item in path.parent.iterdir()] == ["m.plan"]


@pytest.mark.parametrize(("tensors", "metadata", "words"), [
    ({"": np.zeros(1)}, {}, "tensor name '' is reserved"),
    ({"__metadata__": np.zeros(1)}, {}, "is reserved"),
    ({"orind.sha256": np.zeros(1)}, {}, "is reserved"),
    ({".pad.0": np.zeros(1)}, {}, "is reserved"),
    ({"x": np.zeros(1, np.complex64)}, {}, "is of type complex64"),
    ({"x": np.array([None])}, {}, "is of type object"),
    ({}, {"format": "x"}, "metadata key 'format' is not free"),
    ({}, {"crc32": "x"}, "metadata key 'crc32' is not free"),
    ({}, {"a": 1}, "its value is not a text"),
    ({}, {"a": "x" * (MAX_HEADER_BYTES + 1)}, "metadata of"),
])
def test_writer_refuses(tmp_path, tensors, metadata, words):
    with pytest.raises(PlanError) as caught:
        write_plan(tmp_path / "m.plan", tensors, metadata)
    assert words in str(caught.value) and not list(tmp_path.iterdir())


def test_writer_refuses_too_many_tensors(tmp_path, monkeypatch):
    monkeypatch.setattr(plan_file, "MAX_TENSORS", 10)
    with pytest.raises(PlanError, match="4 tensors are too many"):
        write_plan(tmp_path / "m.plan", {str(n): np.zeros(1) for n in range(4)}, {})


def _place(data, header, base, name):
    begin, end = header[name]["data_offsets"]
    return base + begin, base + end


PARTS = [*(name for name in TENSORS if name != "c.empty"), ".pad.00000", ".pad.00004", "orind.crc32", "orind.sha256"]


@pytest.mark.parametrize("part", PARTS)
def test_flipped_byte_names_the_tensor(path, part):
    data = bytearray(path.read_bytes())
    header, base = _header(data)
    begin, end = _place(data, header, base, part)
    for at in {begin, (begin + end) // 2, end - 1}:
        data[at] ^= 0x10
        path.write_bytes(data)
        with PlanFile.open_path(path) as plan, pytest.raises(PlanError) as caught:
            plan.verify()
        assert f"{path}: is damaged in tensor {part}:" in str(caught.value)
        data[at] ^= 0x10


def test_flipped_byte_anywhere_in_the_header_is_refused(path):
    data = bytearray(path.read_bytes())
    _, base = _header(data)
    damaged_names = 0
    for at in range(base):
        data[at] ^= 0x01
        path.write_bytes(data)
        with pytest.raises(PlanError) as caught, PlanFile.open_path(path) as plan:
            plan.verify()
        assert str(caught.value).startswith(f"{path}: ")
        damaged_names += "is damaged in header" in str(caught.value)
        data[at] ^= 0x01
    assert damaged_names > base // 4  # the spec's text, names, sums and the spaces: only the sum can tell


def test_truncated_at_every_kind_of_place(path):
    data = path.read_bytes()
    _, base = _header(data)
    for length in (0, 1, 9, 10, base - 1, base, base + 100, len(data) - 33, len(data) - 1):
        path.write_bytes(data[:length])
        with pytest.raises(PlanError) as caught:
            PlanFile.open_path(path)
        words = "cannot be mapped" if length == 0 else "not a plan" if length < 10 else "is truncated"
        assert str(path) in str(caught.value) and words in str(caught.value)


@pytest.mark.parametrize(("data", "words"), [
    (b"\x08\x03\x12\x07pytorch:" + b"x" * 500, "is not a plan: no safetensors header"),
    (struct.pack("<Q", 1 << 62) + b"{}" + b" " * 500, "header of 4611686018427387904 bytes, most is 67108864"),
    (struct.pack("<Q", 60 << 20) + b"{}" + b" " * 500, "is truncated: header of 62914560 bytes in a file of 510"),
    (struct.pack("<Q", 0) + b"{}", "header is damaged: "),
    (struct.pack("<Q", 4) + b"{,}}", "is not a plan, or its header is damaged"),
    (struct.pack("<Q", 4) + b"{\xff\xfe}", "is not a plan, or its header is damaged"),
    (struct.pack("<Q", 80_005) + b'{"a":' + b"[" * 80_000, "is not a plan, or its header is damaged"),
    (struct.pack("<Q", 13) + b'{"a":1,"a":2}', "a key is given twice"),
    (struct.pack("<Q", 2) + b"{}", "without orind's metadata"),
    (struct.pack("<Q", 31) + b'{"__metadata__":{"format":[1]}}', "without orind's metadata"),
])
def test_not_a_plan(tmp_path, data, words):
    path = tmp_path / "x.plan"
    path.write_bytes(data)
    with pytest.raises(PlanError) as caught:
        PlanFile.open_path(path)
    assert str(path) in str(caught.value) and words in str(caught.value)


def test_other_safetensors_files_and_versions(tmp_path, path):
    other = tmp_path / "other.safetensors"
    save_file({"x": np.zeros(4)}, other, metadata={"format": "pt"})
    with pytest.raises(PlanError, match="not made by `orind build`"):
        PlanFile.open_path(other)
    _rewrite(path, lambda header: header["__metadata__"].update(format="orind-plan-7"))
    with pytest.raises(PlanError, match=r"made by format 'orind-plan-7', this orind reads 'orind-plan-1': rebuild"):
        PlanFile.open_path(path)


@pytest.mark.parametrize(("change", "words"), [
    (lambda h: h["a.w"].update(shape=[38]), "tensor a.w has 37 bytes, shape \\[38\\] not so"),
    (lambda h: h["a.w"].update(shape=[-37]), "entry of tensor a.w makes no sense"),
    (lambda h: h["a.w"].update(shape=[True] * 37), "entry of tensor a.w makes no sense"),
    (lambda h: h["a.w"].update(shape=[1] * 17), "entry of tensor a.w makes no sense"),
    (lambda h: h["a.w"].update(shape=[1 << 50, 0]), "entry of tensor a.w makes no sense"),
    (lambda h: h["a.w"].update(dtype="I4"), "entry of tensor a.w makes no sense"),
    (lambda h: h["a.w"].update(data_offsets=[37, 0]), "entry of tensor a.w makes no sense"),
    (lambda h: h["a.w"].update(data_offsets=[1.5, 2]), "entry of tensor a.w makes no sense"),
    (lambda h: h.update({"a.w": 5}), "entry of tensor a.w makes no sense"),
    (lambda h: h["a.w"].update(data_offsets=[1, 38]), "tensor a.w starts at"),
    (lambda h: h.pop("b.w"), "starts at"),
    (lambda h: h.update({"b2": h.pop(".pad.00000")}), "tensor b2 is not aligned to 256 bytes"),
    (lambda h: h.update({"sha": h.pop("orind.sha256")}), "the last tensor is not orind.sha256"),
    (lambda h: h.update({"crc": h.pop("orind.crc32")}), "no tensor orind.crc32"),
    (lambda h: h.update({"x": {"dtype": "U8", "shape": [0], "data_offsets": [9999, 9999]}}), "tensor x starts at"),
])
def test_hostile_header(path, change, words):
    _rewrite(path, change)
    with pytest.raises(PlanError, match=words):
        PlanFile.open_path(path)


@pytest.mark.parametrize("sums", ["nonsense", "[]"])
def test_header_forged_together_with_its_sum(path, sums):
    _rewrite(path, lambda header: header["__metadata__"].update(crc32=sums))
    data = bytearray(path.read_bytes())
    header, base = _header(data)
    begin, end = _place(data, header, base, "orind.crc32")
    data[begin:end] = struct.pack("<I", zlib.crc32(data[:base])) * 2
    path.write_bytes(data)
    with PlanFile.open_path(path) as plan, pytest.raises(PlanError, match="is damaged in header"):
        plan.verify()


def test_misaligned_base_trailing_bytes_and_too_many_tensors(path, monkeypatch):
    data = path.read_bytes()
    _, base = _header(data)
    path.write_bytes(struct.pack("<Q", base - 7) + data[8:base] + b" " + data[base:])
    with pytest.raises(PlanError, match="not a multiple of 256"):
        PlanFile.open_path(path)
    path.write_bytes(data + b"xyz")
    with pytest.raises(PlanError, match="has 3 bytes after its end"):
        PlanFile.open_path(path)
    path.write_bytes(data)
    monkeypatch.setattr("orind.kernels.plan.layout.MAX_TENSORS", 3)
    with pytest.raises(PlanError, match="tensors, most is 3"):
        PlanFile.open_path(path)


def test_empty_plan_is_a_plan(tmp_path):
    path = tmp_path / "m.plan"
    write_plan(path, {}, {})
    with PlanFile.open_path(path) as plan:
        plan.verify()
        assert not plan.tensors


def test_missing_file_and_folder(tmp_path):
    with pytest.raises(PlanError, match=r"none\.plan: cannot be opened: No such file"):
        PlanFile.open_path(tmp_path / "none.plan")
    with pytest.raises(PlanError, match="cannot be mapped"):
        PlanFile.open_path(tmp_path)


def test_sealed_copy_survives_the_file(path):
    expected = path.read_bytes()
    fd, plan = seal_into_memfd(path)
    try:
        path.write_bytes(b"overwritten")  # in place: the served copy must not care
        plan.verify()
        assert os.pread(fd, len(expected), 0) == expected
        assert str(Path(f"/proc/self/fd/{fd}").readlink()) == f"/memfd:orind-plan-{plan.sha256[:12]} (deleted)"
        with open("/proc/self/maps") as maps:
            assert f"orind-plan-{plan.sha256[:12]}" in maps.read()
        for refused in (lambda: os.write(fd, b"x"), lambda: os.ftruncate(fd, 3),
                        lambda: os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_TRUNC)):
            with pytest.raises(OSError):
                refused()
        again = os.open(f"/proc/self/fd/{fd}", os.O_RDWR)  # root may open it for writing, the seal still holds
        try:
            with pytest.raises(PermissionError):
                os.write(again, b"x")
            with PlanFile.open_fd(again) as third:
                third.verify()
        finally:
            os.close(again)
    finally:
        plan.close()
        os.close(fd)


def test_another_process_maps_the_sealed_plan(path):
    fd, plan = seal_into_memfd(path)
    code = ("import sys; from orind.kernels.plan.file import PlanFile\n"
            "with PlanFile.open_fd(int(sys.argv[1])) as p: p.verify(); print(p.sha256, p.tensors['a.w'].sum())")
    try:
        done = subprocess.run([sys.executable, "-c", code, str(fd)], pass_fds=(fd,), capture_output=True, text=True,
                              check=True)
        assert done.stdout.split() == [plan.sha256, str(sum(range(37)))]
    finally:
        plan.close()
        os.close(fd)


def test_seal_refuses_and_leaks_nothing(path, tmp_path, monkeypatch):
    def open_fds():
        return len(list(Path("/proc/self/fd").iterdir()))

    before = open_fds()
    with pytest.raises(PlanError, match=r"none\.plan: cannot be opened"):
        seal_into_memfd(tmp_path / "none.plan")
    small = tmp_path / "small.plan"
    small.write_bytes(b"x" * 5)
    with pytest.raises(PlanError, match="is not a plan: 5 bytes"):
        seal_into_memfd(small)
    small.write_bytes(b"x" * 500)
    with pytest.raises(PlanError, match="is not a plan: no safetensors header"):
        seal_into_memfd(small)
    data = bytearray(path.read_bytes())
    data[-40] ^= 1
    path.write_bytes(data)
    with pytest.raises(PlanError, match="is damaged in tensor"):
        seal_into_memfd(path)
    data[-40] ^= 1
    path.write_bytes(data)
    real = os.sendfile
    monkeypatch.setattr(plan_memfd.os, "sendfile", lambda *args: 0)
    with pytest.raises(PlanError, match="was truncated while it was read"):
        seal_into_memfd(path)

    def fails(*args):
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(plan_memfd.os, "sendfile", fails)
    with pytest.raises(PlanError, match="cannot be copied into memory: Cannot allocate memory"):
        seal_into_memfd(path)
    monkeypatch.setattr(plan_memfd.os, "sendfile", real)
    monkeypatch.setattr(plan_memfd.os, "pread", lambda fd, n, at: bytes(n))
    with pytest.raises(PlanError, match="was changed while it was read"):
        seal_into_memfd(path)
    assert open_fds() == before


def test_no_heavy_imports():
    code = ("import sys, orind.kernels.plan.memfd, orind.kernels.spec, orind.kernels.picture\n"
            "print([m for m in ('zmq', 'yaml', 'pydantic', 'onnx', 'safetensors') if m in sys.modules])")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
