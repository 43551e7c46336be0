"""jetson_clocks of a simulated board, at ROOT/usr/bin/jetson_clocks: pins GPU and CPUs at what the active mode allows.

`--show` in the form of NVIDIA's script; `--store [FILE]` and `--restore [FILE]` keep the minimum clocks (ROOT/root/
.jetsonclocks_conf.txt). The memory's clock is held at its cap, which it never leaves here. The fan is left alone.
Nothing of it outlives an `nvpmodel`, as on a board.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(sys.argv[0]).resolve().parents[2]
CPU = ROOT / "sys/devices/system/cpu"
EMC = ROOT / "sys/kernel/debug/bpmp/debug/clk/emc"
STORE = ROOT / "root/.jetsonclocks_conf.txt"


def gpu() -> Path:
    found = sorted((ROOT / "sys/class/devfreq").iterdir())
    return next(node for node in found if (node / "device/of_node/name").read_text().strip("\0\n") in ("gpu", "ga10b"))


def read(path: Path) -> str:
    return path.read_text().strip()


def minimums() -> dict[Path, Path]:
    """Of each clock: the file of its minimum -> that of its maximum."""
    pairs = {gpu() / "min_freq": gpu() / "max_freq"}
    for policy in sorted((CPU / "cpufreq").iterdir()):
        pairs[policy / "scaling_min_freq"] = policy / "scaling_max_freq"
    return pairs


def show() -> None:
    model = (ROOT / "sys/firmware/devicetree/base/model").read_bytes().rstrip(b"\0").decode()
    print(f"SOC family:tegra234  Machine:{model}\nOnline CPUs: {read(CPU / 'online')}")
    for cpu in sorted(CPU.glob("cpu[0-9]*"), key=lambda path: int(path.name[3:])):
        clocks = [read(cpu / "cpufreq" / f"scaling_{name}_freq") for name in ("min", "max", "cur")]
        print(f"{cpu.name}:  Online={read(cpu / 'online')} Governor={read(cpu / 'cpufreq/scaling_governor')} "
              f"MinFreq={clocks[0]} MaxFreq={clocks[1]} CurrentFreq={clocks[2]} IdleStates: WFI=1 c7=1 ")
    print("GPU " + " ".join(f"{name}Freq={read(gpu() / f'{key}_freq')}"
                            for name, key in (("Min", "min"), ("Max", "max"), ("Current", "cur"))))
    print(f"EMC MinFreq={read(EMC / 'min_rate')} MaxFreq={read(EMC / 'max_rate')} CurrentFreq={read(EMC / 'rate')} "
          f"FreqOverride={read(EMC / 'mrq_rate_locked')}")


def main(arguments: list[str]) -> int:
    store = Path(arguments[1]) if len(arguments) == 2 else STORE
    if arguments == ["--show"]:
        show()
    elif arguments[:1] == ["--store"] and len(arguments) <= 2:
        store.parent.mkdir(parents=True, exist_ok=True)
        kept = [*minimums(), EMC / "mrq_rate_locked"]
        store.write_text("".join(f"{path.relative_to(ROOT)}:{read(path)}\n" for path in kept))
    elif arguments[:1] == ["--restore"] and len(arguments) <= 2:
        if not store.exists():
            print(f"Error: {store} does not exist; use --store before", file=sys.stderr)
            return 1
        for line in store.read_text().splitlines():
            path, _, value = line.rpartition(":")
            (ROOT / path).write_text(f"{value}\n")
    elif not arguments:
        for low, high in minimums().items():
            low.write_text(f"{read(high)}\n")
        (EMC / "mrq_rate_locked").write_text("1\n")
    else:
        print("usage: jetson_clocks [--show|--store [FILE]|--restore [FILE]]", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
