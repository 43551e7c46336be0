"""Builds the virtual GPU: our own libcuda.so.1, from core/, instructions/ and driver/, with g++ alone.

Called by the tests' fixtures, by scripts, and by hand: `.venv-test/bin/python tests/virtual_gpu/build.py` prints the
folder that holds libcuda.so.1, for LD_LIBRARY_PATH. Invariant: what is in the folder is what the sources say; objects
are cached by the hash of all that makes them (source, headers, flags, compiler and its idea of this processor), so a
second call is fast.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
OUT = ROOT / ".virtual-gpu"
FOLDERS = (HERE / "core", HERE / "instructions", HERE / "driver")
SYMBOLS = HERE / "driver" / "symbols.txt"
LIBRARY = "libcuda.so.1"
FLAGS = (
    *("-std=c++20", "-O3", "-march=native", "-fno-strict-aliasing", "-fwrapv", "-ffp-contract=off"),
    *("-fvisibility=hidden", "-fPIC", "-Wall", "-Wextra", "-pthread"),
)
EXPORTS = HERE / "driver" / "exports.map"
LINK_FLAGS = ("-shared", "-pthread", f"-Wl,-soname,{LIBRARY}", "-Wl,--no-undefined", f"-Wl,--version-script,{EXPORTS}")
JOBS = 2
KEEP_OBJECTS_S = 24 * 3600.0
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
STANDARD = re.compile(r"^#include <(\w+)>", re.MULTILINE)
"""Headers of C++ itself, which have no suffix."""
WORTH_A_HEADER = 8
"""Files to compile for which parsing C++'s headers once beforehand saves more than it costs."""


class BuildError(RuntimeError):
    """The compiler or linker failed; the text holds what it said."""


def run(command: Sequence[str], stdin: str = "") -> str:
    try:
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
    except OSError as error:
        said = f"{command[0]} cannot be run ({error.strerror}): install g++, or name a compiler (--compiler, CXX)"
        raise BuildError(said) from error
    if done.returncode:
        raise BuildError(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    if done.stderr:
        sys.stderr.write(done.stderr)
    return done.stdout


def compiler_identity(compiler: str, architecture: str) -> str:
    """What the compiler is and which instructions the architecture (`native`, too) means to it."""
    return run([compiler, f"-march={architecture}", "-dM", "-E", "-x", "c++", "-"])


def included(path: Path, seen: dict[Path, bytes]) -> dict[Path, bytes]:
    """The file and all of ours that it includes, with their contents."""
    if path not in seen:
        seen[path] = path.read_bytes()
        for name in INCLUDE.findall(seen[path].decode()):
            header = (path.parent / name).resolve()
            if header.exists():
                included(header, seen)
    return seen


def stubs(names: Sequence[str]) -> str:
    """C++ that answers every driver function not implemented elsewhere; weak, so that an implementation replaces it."""
    lines = ['extern "C" int virtual_gpu_unsupported(const char* name);']
    lines += [
        f'extern "C" __attribute__((weak, visibility("default"))) int {name}() '
        f'{{ return virtual_gpu_unsupported("{name}"); }}'
        for name in names
    ]
    return "\n".join(lines) + "\n"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """One build at a time, whoever asks."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def precompiled(sources: Sequence[Path], folder: Path, command: Sequence[str]) -> Iterator[list[str]]:
    """Flags with which g++ finds the headers of C++ that the sources include parsed: a third of a cold build."""
    texts: dict[Path, bytes] = {}
    for source in sources:
        included(source, texts)
    names = {name for text in texts.values() for name in STANDARD.findall(text.decode())}
    with TemporaryDirectory(dir=folder) as made:
        header = Path(made) / "standard.h"
        header.write_text("".join(f"#include <{name}>\n" for name in sorted(names)))
        run([*command, "-x", "c++-header", str(header), "-o", f"{header}.gch"])
        yield ["-include", str(header), "-Winvalid-pch"]


def compile_all(sources: Sequence[Path], objects: Path, compiler: str, architecture: str) -> list[Path]:
    identity = compiler_identity(compiler, architecture)
    flags = [flag.replace("-march=native", f"-march={architecture}") for flag in FLAGS]

    def object_of(source: Path) -> Path:
        key = hashlib.sha256("\0".join((identity, compiler, *flags)).encode())
        for path, text in sorted(included(source, {}).items()):
            key.update(path.name.encode() + b"\0" + text)
        return objects / f"{source.stem}-{key.hexdigest()[:24]}.o"

    def compiled(source: Path, target: Path, headers: Sequence[str]) -> None:
        part = target.with_suffix(f".{os.getpid()}.part")
        run([compiler, *flags, *headers, "-c", str(source), "-o", str(part)])
        part.replace(target)

    targets = [object_of(source) for source in sources]
    missing = [(source, target) for source, target in zip(sources, targets, strict=True) if not target.exists()]
    if missing:
        print(f"== compiling {len(missing)} of {len(sources)} files of the virtual GPU", file=sys.stderr, flush=True)
    many = len(missing) >= WORTH_A_HEADER
    shared = precompiled(sources, objects, [compiler, *flags]) if many else nullcontext([])
    with shared as headers, ThreadPoolExecutor(JOBS) as pool:
        list(pool.map(lambda pair: compiled(*pair, headers), missing))
    for target in targets:
        os.utime(target)
    return targets


def build(
    out: Path = OUT, folders: Sequence[Path] = FOLDERS, compiler: str = "g++", architecture: str = "native"
) -> Path:
    """Compiles what has changed and links; returns the folder that holds libcuda.so.1. Raises BuildError."""
    objects = out / "objects"
    with locked(out):
        objects.mkdir(exist_ok=True)
        generated = out / "stubs.cpp"
        generated.write_text(stubs(SYMBOLS.read_text().split()))
        sources = [path for folder in folders for path in sorted(folder.glob("*.cpp"))]
        linked = compile_all([*sources, generated], objects, compiler, architecture)
        parts = (*(path.name for path in linked), *LINK_FLAGS, EXPORTS.read_text())
        key = hashlib.sha256("\0".join(parts).encode()).hexdigest()
        library, stamp = out / LIBRARY, out / "linked"
        if not (library.exists() and stamp.exists() and stamp.read_text() == key):
            part = out / f"{LIBRARY}.{os.getpid()}.part"
            run([compiler, *LINK_FLAGS, "-o", str(part), *map(str, linked)])
            part.replace(library)
            stamp.write_text(key)
        link = out / "libcuda.so"
        if not link.is_symlink():
            link.symlink_to(LIBRARY)
        old = time.time() - KEEP_OBJECTS_S
        for path in objects.iterdir():
            if path not in linked and path.stat().st_mtime < old:
                path.unlink()
    return out


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--compiler", default=os.environ.get("CXX", "g++"), help="default: $CXX, else g++")
    parser.add_argument("--out", type=Path, default=OUT, help="default: .virtual-gpu in the repository")
    parser.add_argument("--architecture", default="native", help="for -march, where the compiler is a cross-compiler")
    options = parser.parse_args()
    try:
        print(build(options.out, compiler=options.compiler, architecture=options.architecture))
    except (BuildError, OSError) as error:
        print(f"virtual GPU: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
