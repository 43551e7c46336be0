"""Every form of instruction that the machine accepts, against the PTX ISA (isa/); and that it accepts no other."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import build
import pytest
from driver_calls import REAL, Cuda, CudaError
from isa import (
    approximations,
    arguments,
    atomics,
    bits,
    comparisons,
    control,
    conversions,
    copies,
    floats,
    halves,
    integers,
    matrices,
    memory,
    special,
    warp,
)
from isa.batch import Case, kernel

FAMILIES: tuple[ModuleType, ...] = (
    *(integers, bits, comparisons, floats, approximations, halves, conversions),
    *(memory, arguments, atomics, copies, matrices, warp, special, control),
)
CHECKS: list[Callable[[Cuda], None]] = [check for family in FAMILIES for check in family.CHECKS]


class Machine(Cuda):
    """Keeps the PTX that it was given, and which checks have passed on it."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.texts: list[str] = []
        self.passed: set[Callable[[Cuda], None]] = set()

    def module(self, ptx: str) -> int:
        self.texts.append(ptx)
        return super().module(ptx)

    def run_checks(self) -> None:
        for check in CHECKS:
            if check not in self.passed:
                check(self)
                self.passed.add(check)

    def forms(self) -> list[tuple[str, bool]]:
        """Each form, with its operands as core/forms.h writes them, and whether a module that was loaded used it."""
        self.library.virtual_gpu_forms.restype = ctypes.c_char_p
        lines = self.library.virtual_gpu_forms().decode().splitlines()
        return [(f"{name} {operands}", used == "1") for name, operands, used in (line.split("\t") for line in lines)]


@pytest.fixture(scope="module")
def machine(library: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """An instance that no other test loads a module into."""
    path = library / build.LIBRARY
    instance = Machine(path if REAL else Path(shutil.copy(path, tmp_path_factory.mktemp("isa"))))
    instance.initialise()
    context = instance.create_context()
    yield instance
    instance.check("cuCtxDestroy_v2", context)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_by_the_isa(machine: Machine, check: Callable[[Cuda], None]) -> None:
    check(machine)
    machine.passed.add(check)


@pytest.mark.virtual
def test_every_form_that_is_accepted_is_exercised(machine: Machine) -> None:
    machine.run_checks()
    forms = machine.forms()
    assert len(forms) > 1000 and not [form for form, used in forms if not used]


@pytest.mark.virtual
def test_all_of_it_is_ptx_to_nvidia_s_own_assembler(machine: Machine, ptxas: Path, tmp_path: Path) -> None:
    machine.run_checks()
    source = tmp_path / "k.ptx"
    for text in machine.texts:
        source.write_text(text)
        command = [str(ptxas), "-arch=sm_87", "-O0", "-o", str(tmp_path / "k.cubin"), str(source)]
        said = subprocess.run(command, capture_output=True, text=True, check=False)
        assert said.returncode == 0, said.stderr


@pytest.mark.parametrize(
    ("instruction", "right", "most"),
    [
        ("ex2.approx.f32", 0x00400000, 2),
        ("ex2.approx.f32", 0x3F800000, 2),
        ("ex2.approx.ftz.f32", 0, 0),
        ("lg2.approx.f32", 0x40400000, 3),
        ("rsqrt.approx.f32", 0x3F000000, 1),
        ("sqrt.approx.ftz.f32", 0x3F800000, 1),
        ("div.full.f32", 0x3F800000, 2),
        ("add.f32", 0x3F800000, 0),
    ],
)
def test_how_many_units_hardware_may_be_off(instruction: str, right: int, most: int) -> None:
    agree = approximations.agree
    assert [agree(instruction, right + units, right, real=True) for units in range(5)] == [u <= most for u in range(5)]
    assert not agree(instruction, 0x7FFFFFFF, right, real=True)
    assert not agree(instruction, right, 0x7F800000, real=True)
    assert not agree(instruction, right + 1, right, real=False)


def text_of(instruction: str, operands: str = "ww") -> str:
    return kernel([Case(instruction, "w", operands, [], lambda *row: 0)])


@pytest.mark.virtual
@pytest.mark.parametrize(
    "instruction",
    [
        "div.rz.f32",
        "cvt.pack.sat.s4.s32.b32",
        "ld.global.nc.L3::64B.u32",
        "atom.relaxed.gpu.global.add.u32",
        "prmt.b32.rc16",
        "mma.sync.aligned.m16n8k256.row.col.s32.b1.b1.s32",
    ],
)
def test_a_modifier_that_is_not_known_is_refused_by_name(machine: Machine, instruction: str) -> None:
    with pytest.raises(CudaError) as refusal:
        Cuda.module(machine, text_of(instruction))
    assert refusal.value.code == 218 and instruction in machine.last_fault()


@pytest.mark.virtual
@pytest.mark.parametrize(
    "text",
    [
        "add.s32 %w0, %d1, %w2",
        "add.s32 %w0, %w1",
        "add.s32 %p0, %w1, %w2",
        "add.s32 %w0, %nowhere, %w2",
        "setp.lt.s32 %w0, %w1, %w2",
    ],
)
def test_operands_that_do_not_fit_are_refused(machine: Machine, text: str) -> None:
    with pytest.raises(CudaError):
        Cuda.module(machine, text_of(f"{text}; mov.u32 {{0}}, {{1}}"))
    assert "line" in machine.last_fault()
