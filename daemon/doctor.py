"""`orind doctor`: what this machine has and lacks, before the daemon starts (ExecStartPre=).

Exit 0 unless something is missing that `serve` cannot do without.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import metadata

from ..ipc import meminfo
from ..ipc.exit_codes import Exit
from ..kernels.cuda import nvrtc, presence
from ..kernels.pre import jpeg
from ..power.sysfs import Sysfs

# L4T releases whose paths and names the board facts were written for; others are served with a warning
KNOWN_L4T = ("36.3", "36.4", "36.5", "39.2")
LEAST_FREE_MIB = 256


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at. level: ok, absent (and not needed here), warning (serves all the same) or error."""

    name: str
    level: str
    text: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "example: orind doctor --json\nexit code 0: can serve (warnings allowed); 69: something essential is missing"
    )
    parser.add_argument("--json", action="store_true", help="as one JSON list")


def run(options: argparse.Namespace) -> int:
    findings = [look() for look in CHECKS]
    if options.json:
        print(json.dumps([asdict(f) for f in findings]))
    else:
        for finding in findings:
            print(f"{finding.level:8} {finding.name:10} {finding.text}")
    return Exit.UNAVAILABLE if any(f.level == "error" for f in findings) else Exit.DONE


def _python() -> Finding:
    version = platform.python_version()
    good = (3, 10) <= sys.version_info[:2] < (3, 13)
    return Finding("python", "ok" if good else "error", version if good else f"{version}: orind needs 3.10 to 3.12")


def _libraries() -> Finding:
    names = ("numpy", "pyzmq", "pydantic", "PyYAML", "PyTurboJPEG", "prometheus-client")
    found, missing = [], []
    for name in names:
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            missing.append(name)
    if missing:
        return Finding("libraries", "error", f"missing: {', '.join(missing)}; reinstall orind")
    return Finding("libraries", "ok", ", ".join(found))


def _jpeg() -> Finding:
    if not jpeg.available():
        return Finding("jpeg", "warning", f"JPEG frames cannot be served: {jpeg.REMEDY}")
    return Finding("jpeg", "ok", jpeg.LIBRARY)


def _notify() -> Finding:
    """Only systemd needs the library; without systemd its absence does not matter."""
    try:
        metadata.version("systemd-python")
    except metadata.PackageNotFoundError:
        level = "error" if os.environ.get("NOTIFY_SOCKET") or os.environ.get("INVOCATION_ID") else "absent"
        here = "needed, for this runs under systemd" if level == "error" else "not needed here, only to run as a unit"
        return Finding("systemd", level, f"systemd-python is not installed: {here} (orind[systemd])")
    return Finding("systemd", "ok", "systemd-python is installed")


def _board() -> Finding:
    release = Sysfs("/").read_release()
    if release is None:
        return Finding("board", "absent", f"not a Jetson ({platform.machine()})")
    known = any(release.startswith(k) for k in KNOWN_L4T)
    text = f"L4T {release}" + ("" if known else f" has not been tested (known: {', '.join(KNOWN_L4T)})")
    return Finding("board", "ok" if known else "warning", text)


def _memory() -> Finding:
    memory = meminfo.read()
    level = "ok" if memory.available >> 20 >= LEAST_FREE_MIB else "error"
    return Finding("memory", level, f"{memory.available >> 20} MiB available of {memory.total >> 20}")


def _limits() -> Finding:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]  # `serve` raises the soft limit to it
    lock = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    locked = "unlimited" if lock == resource.RLIM_INFINITY else f"{lock >> 10} KiB"
    level = "ok" if hard >= 1024 else "warning"
    return Finding("limits", level, f"{hard} open files, {locked} of locked memory")


def _cuda() -> Finding:
    """What `engine.device: cuda` needs; nothing of it is an error, since a plan may be served on the CPU."""
    try:
        compiler = nvrtc.load()
    except nvrtc.CompileError:
        return Finding("cuda", "absent", "no NVRTC: only engine.device cuda needs it (orind[cuda])")
    text = f"NVRTC {compiler.version[0]}.{compiler.version[1]} ({compiler.path})"
    try:
        text += f", PyCUDA {metadata.version('pycuda')}"
    except metadata.PackageNotFoundError:
        return Finding("cuda", "absent", f"{text}; no PyCUDA: only engine.device cuda needs it (scripts/build_pycuda)")
    try:
        return Finding("cuda", "ok", f"{presence.first_gpu()}, {text}")
    except presence.NoGpu as missing:
        return Finding("cuda", "absent", f"{missing}: only engine.device cuda needs it; {text}")


CHECKS: tuple[Callable[[], Finding], ...] = (_python, _libraries, _jpeg, _notify, _cuda, _board, _memory, _limits)
