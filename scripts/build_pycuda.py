"""Builds PyCUDA from its source distribution, keeps the wheel, installs it: scripts/build_pycuda.

Also called by the fixtures of tests/virtual_gpu. PyCUDA comes as source only; to compile it takes CUDA's headers and a
libcuda.so that defines the driver's functions. Both are made here, so that no toolkit has to be installed: headers
from the registry's wheels (or a toolkit named by --toolkit), and a library that has the names alone (symbols.txt of the
virtual GPU). Which libcuda.so.1 is used is decided when PyCUDA is imported: the board's driver, or the virtual GPU by
LD_LIBRARY_PATH. Invariant: a kept wheel is keyed by PyCUDA's version, the headers' version, Python and machine; what is
damaged of what is kept, as where power was lost, is made again.
"""

from __future__ import annotations

import argparse
import fcntl
import gzip
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SYMBOLS = ROOT / "tests" / "virtual_gpu" / "driver" / "symbols.txt"
CACHE = ROOT / ".virtual-gpu" / "pycuda"
VERSION = "2026.1"
HEADERS_VERSION = "12.6"  # JetPack 6
HEADERS = ("nvidia-cuda-runtime-cu12==12.6.*", "nvidia-cuda-profiler-api-cu12==12.6.*")
NVRTC = "nvidia-cuda-nvrtc-cu12==12.6.*"  # compiles kernels; a toolkit brings its own
# what the compiler needs besides, when pip builds in an environment of its own: PyCUDA's pyproject.toml
BUILD_NEEDS = ("setuptools", "wheel", "numpy")


class SetupError(RuntimeError):
    """PyCUDA cannot be built or installed; the text says what to do."""


@dataclass(frozen=True)
class Sources:
    """Where packages and headers come from."""

    wheelhouse: Path | None = None  # a folder with everything, instead of the network
    toolkit: Path | None = None  # an installed CUDA toolkit, instead of the header wheels

    def pip_options(self) -> list[str]:
        return ["--no-index", "--find-links", str(self.wheelhouse)] if self.wheelhouse else []


def pip(python: str, *arguments: str, environment: Mapping[str, str] | None = None, log: Path) -> None:
    command = [python, "-m", "pip", "--disable-pip-version-check", *arguments]
    with open(log, "a") as file:
        file.write(f"$ {' '.join(command)}\n")
        file.flush()
        code = subprocess.run(command, env=environment, stdout=file, stderr=subprocess.STDOUT, check=False).returncode
    if code:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-20:])
        raise SetupError(f"{tail}\npip {arguments[0]} failed (all of it: {log})")


def sound(archive: Path) -> bool:
    """Whether all of a wheel or a source archive is there, by its checksums."""
    try:
        if archive.suffix == ".whl":
            with zipfile.ZipFile(archive) as wheel:
                return wheel.testzip() is None
        with gzip.open(archive) as file:
            while file.read(1 << 20):
                pass
    except (OSError, EOFError, zipfile.BadZipFile, zlib.error):
        return False
    return True


def still_sound(kept: Path) -> bool:
    """Whether it can be used; what is damaged is removed, and so made again."""
    if kept.exists() and not sound(kept):
        print(f"== {kept} is damaged: it is made again", flush=True)
        kept.unlink()
    return kept.exists()


def from_wheelhouse(archive: Path) -> Path:
    if not sound(archive):
        raise SetupError(f"{archive} is damaged: fill the wheelhouse again (--fill, on a machine with network)")
    return archive


def headers_version(toolkit: Path) -> str:
    """`12.6` from CUDA_VERSION in the toolkit's cuda.h."""
    header = toolkit / "include" / "cuda.h"
    if not header.exists():
        raise SetupError(f"--toolkit {toolkit}: no include/cuda.h there; name the toolkit's folder, as /usr/local/cuda")
    found = re.search(r"#define\s+CUDA_VERSION\s+(\d+)", header.read_text(errors="replace"))
    if not found:
        raise SetupError(f"{header} does not define CUDA_VERSION")
    return f"{int(found[1]) // 1000}.{int(found[1]) % 1000 // 10}"


def merge_headers(python: str, sources: Sources, folder: Path, log: Path) -> Path:
    """A toolkit of headers alone, out of the registry's wheels."""
    wheels, toolkit = folder / "wheels", folder / "toolkit"
    options = ("--no-deps", "--only-binary", ":all:", "-d", str(wheels))
    pip(python, "download", *sources.pip_options(), *options, *HEADERS, log=log)
    for wheel in wheels.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                inside = name.partition("/include/")[2]
                if not inside or name.endswith("/"):
                    continue
                target = toolkit / "include" / inside
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(archive.read(name))
    headers_version(toolkit)
    return toolkit


def link_library(folder: Path) -> Path:
    """A libcuda.so that has every name of the driver: linkers with --as-needed drop one that defines nothing we use."""
    folder.mkdir()
    source, library = folder / "names.c", folder / "libcuda.so"
    source.write_text("".join(f"int {name}(void) {{ return 801; }}\n" for name in SYMBOLS.read_text().split()))
    command = ["gcc", "-shared", "-fPIC", "-w", "-Wl,-soname,libcuda.so.1", "-o", str(library), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SetupError(f"{done.stderr}gcc cannot make the library to link with")
    return folder


def build_environment(home: Path, toolkit: Path, library: Path) -> dict[str, str]:
    """PyCUDA's set-up reads its settings from ~/.aksetup-defaults.py and nowhere else: a home of its own for the build.

    pip still finds its own settings and credentials where they are.
    """
    home.mkdir()
    settings = {"CUDA_ROOT": str(toolkit), "CUDA_ENABLE_CURAND": False, "CUDADRV_LIB_DIR": [str(library)]}
    settings["CXXFLAGS"] = ["-g0"]  # a tenth of the size
    text = "".join(f"{name} = {value!r}\n" for name, value in settings.items())
    (home / ".aksetup-defaults.py").write_text(text)
    for name in (".pip", ".netrc"):
        if (Path.home() / name).exists():
            (home / name).symlink_to(Path.home() / name)
    environment = dict(os.environ) | {"HOME": str(home)}
    environment.setdefault("XDG_CONFIG_HOME", str(Path.home() / ".config"))
    return environment


def source_distribution(python: str, sources: Sources, cache: Path = CACHE) -> Path:
    """PyCUDA's source archive. To hand it over, pip runs its set-up, which wants a toolkit named, whatever is there."""
    name = f"pycuda-{VERSION}.tar.gz"
    if sources.wheelhouse and (sources.wheelhouse / name).exists():
        return from_wheelhouse(sources.wheelhouse / name)
    if not still_sound(cache / name):
        with tempfile.TemporaryDirectory(prefix="pycuda-") as folder:
            work = Path(folder)
            environment = build_environment(work / "home", work, work)
            options = ("--no-deps", "--no-cache-dir", "--no-binary", "pycuda", "-d", str(work), f"pycuda=={VERSION}")
            log = cache / "download.log"
            pip(python, "download", *sources.pip_options(), *options, environment=environment, log=log)
            shutil.copy(work / name, cache / f"{name}.part")
            (cache / f"{name}.part").rename(cache / name)
    return cache / name


def python_tag(python: str) -> str:
    """As cp310. Raises SetupError."""
    code = "import sys; print(f'cp{sys.version_info[0]}{sys.version_info[1]}')"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    if done.returncode or not re.fullmatch(r"cp3\d+\n", done.stdout):
        raise SetupError(f"--python {python}: that is no interpreter of Python 3\n{done.stderr}".rstrip())
    return done.stdout.strip()


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def wheel_for(python: str, sources: Sources, cache: Path = CACHE) -> Path:
    """The wheel for this interpreter, built if it is not there, which takes a minute or two on one core."""
    headers = headers_version(sources.toolkit) if sources.toolkit else HEADERS_VERSION
    tag = python_tag(python)
    folder = cache / f"pycuda-{VERSION}-cuda{headers}-{tag}-{platform.machine()}"
    with locked(cache):
        for kept in folder.glob("*.whl"):
            if still_sound(kept):
                return kept
        if sources.wheelhouse:
            for wheel in sources.wheelhouse.glob(f"pycuda-{VERSION}-{tag}-*_{platform.machine()}.whl"):
                return from_wheelhouse(wheel)
        named = f"PyCUDA {VERSION} with headers of CUDA {headers}"
        print(f"== building {named} (once; a minute or two on one core)", flush=True)
        log = cache / "build.log"
        log.write_text("")
        with tempfile.TemporaryDirectory(prefix="pycuda-") as name:
            work = Path(name)
            toolkit = sources.toolkit or merge_headers(python, sources, work, log)
            environment = build_environment(work / "home", toolkit.resolve(), link_library(work / "link"))
            source = source_distribution(python, sources, cache)
            options = ("--no-deps", "--no-cache-dir", "-w", str(work / "out"))  # a cached wheel could be another's
            pip(python, "wheel", *sources.pip_options(), *options, str(source), environment=environment, log=log)
            (built,) = (work / "out").glob("pycuda-*.whl")
            folder.mkdir(parents=True, exist_ok=True)
            part = folder / f"{built.name}.part"
            shutil.copy(built, part)
            return part.rename(folder / built.name)


def installed_version(python: str, package: str = "pycuda") -> str:
    """A package's version in that environment, empty if it is not there. Importing PyCUDA would need a driver."""
    code = f"from importlib.metadata import version\nprint(version({package!r}))"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def ensure(python: str = sys.executable, sources: Sources | None = None, cache: Path = CACHE) -> None:
    """Makes PyCUDA and NVRTC available in the environment of `python`, if they are not. Raises SetupError."""
    sources = sources or Sources()
    packages = []
    if installed_version(python) != VERSION:
        # NumPy is not among the wheel's requirements, but pycuda.driver imports it
        packages += [str(wheel_for(python, sources, cache)), "numpy>=1.24"]
    if not sources.toolkit and not installed_version(python, "nvidia-cuda-nvrtc-cu12").startswith(HEADERS_VERSION):
        packages.append(NVRTC)
    if packages:
        cache.mkdir(parents=True, exist_ok=True)
        pip(python, "install", *sources.pip_options(), *packages, log=cache / "install.log")
        print(f"== installed {', '.join(Path(package).name for package in packages)}", flush=True)


def fill(python: str, folder: Path) -> None:
    """Puts all that a build and an installation need into a folder, for a machine of this kind without network."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SetupError(f"--fill {folder}: {error.strerror}; name a folder, which may be a new one") from error
    wheel = wheel_for(python, Sources())
    shutil.copy(wheel, folder)
    shutil.copy(source_distribution(python, Sources()), folder)
    log = CACHE / "fill.log"
    options = ("--only-binary", ":all:", "-d", str(folder))
    pip(python, "download", "--no-deps", *options, *HEADERS, NVRTC, log=log)
    pip(python, "download", *options, *BUILD_NEEDS, str(wheel), log=log)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="scripts/build_pycuda", description="Build and install PyCUDA, once.")
    parser.add_argument("--python", default=sys.executable, help="install for this interpreter (default: .venv-test)")
    parser.add_argument("--wheelhouse", type=Path, metavar="DIR", help="take all packages from this folder, no network")
    parser.add_argument("--toolkit", type=Path, metavar="DIR", help="use this CUDA toolkit's headers (/usr/local/cuda)")
    parser.add_argument("--fill", type=Path, metavar="DIR", help="only fill a wheelhouse, on a machine with network")
    options = parser.parse_args(arguments)
    try:
        if options.wheelhouse and not options.wheelhouse.is_dir():
            raise SetupError(f"--wheelhouse {options.wheelhouse} is not a folder; --fill makes one")
        if not shutil.which(options.python):
            raise SetupError(f"--python {options.python}: there is no such interpreter")
        python_tag(options.python)
        if options.toolkit:
            headers_version(options.toolkit)
        sources = Sources(options.wheelhouse and options.wheelhouse.resolve(), options.toolkit)
        if options.fill:
            fill(options.python, options.fill)
        else:
            ensure(options.python, sources)
    except (SetupError, OSError) as error:
        print(f"build_pycuda: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
