"""mma.sync and ldmatrix: products computed here, in the layouts of PTX ISA 8.5, "Matrix Fragments for mma" of each."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence

from driver_calls import Cuda
from ptx_kernel import module


def fragments(rows: list[list[int]], registers: int) -> list[list[int]]:
    """Registers of an 8- or 16-row operand whose rows are bytes, by the layout of PTX ISA 8.5, section 9.7.14.5.10."""
    tall = len(rows) // 8
    found = []
    for lane in range(32):
        group, part = divmod(lane, 4)
        mine = []
        for r in range(registers):
            row, start = rows[group + 8 * (r % tall)], 16 * (r // tall) + 4 * part
            mine.append(int.from_bytes(bytes(b & 255 for b in row[start : start + 4]), "little"))
        found.append(mine)
    return found


def multiply(
    cuda: Cuda, instruction: str, a: list[list[int]], b: list[list[int]], c: list[list[int]], counts: Sequence[int]
) -> list[int]:
    """The 4 accumulator registers of each lane, after one mma of `counts` registers for a, b and c."""
    na, nb, nc = counts
    data = []
    for lane in range(32):
        group, part = divmod(lane, 4)
        accumulators = [c[group + 8 * (i // 2)][2 * part + i % 2] & 0xFFFFFFFF for i in range(nc)]
        data += [*fragments(a, na)[lane], *fragments(b, nb)[lane], *accumulators]
    total = na + nb + nc
    loads = " ".join(f"ld.global.u32 %w{i}, [%d1+{4 * i}];" for i in range(total))

    def group_of(first: int, count: int) -> str:
        return "{" + ", ".join(f"%w{first + i}" for i in range(count)) + "}"

    body = f"""ld.param.u64 %d1, [in]; mad.wide.u32 %d1, %t, {4 * total}, %d1; {loads}
    {instruction} {group_of(30, nc)}, {group_of(0, na)}, {group_of(na, nb)}, {group_of(na + nb, nc)};
    mul.wide.u32 %d2, %t, {4 * (nc + total - 1)}; add.u64 %o, %o, %d2;
    """ + " ".join(f"st.global.u32 [%o+{4 * i}], %w{r};" for i, r in enumerate((*range(30, 30 + nc), *range(total))))
    out = cuda.allocate(4 * (nc + total) * 32)
    source = cuda.allocate(4 * len(data))
    cuda.write(source, struct.pack(f"{len(data)}I", *data))
    cuda.run(cuda.function(cuda.module(module(body, ("out", "in"))), "k"), out, source)
    found = cuda.words(out, (nc + total) * 32)
    lanes = [found[i : i + nc + total] for i in range(0, len(found), nc + total)]
    assert [word for lane in lanes for word in lane[nc:]] == data, f"{instruction} changes what it reads"
    return [word for lane in lanes for word in lane[:nc]]


def layout(product: Callable[[int, int], int], count: int) -> list[int]:
    return [
        product(lane // 4 + 8 * (i // 2), 2 * (lane % 4) + i % 2) & 0xFFFFFFFF
        for lane in range(32)
        for i in range(count)
    ]


SIGNS = {"s8.s8": (-128, -128), "u8.s8": (0, -128), "s8.u8": (-128, 0), "u8.u8": (0, 0)}
SHAPES = {"m16n8k32": (16, 32, (4, 2, 4)), "m16n8k16": (16, 16, (2, 1, 4)), "m8n8k16": (8, 16, (1, 1, 2))}


def integer_products(cuda: Cuda) -> None:
    for signs, (low_a, low_b) in SIGNS.items():
        for shape, (rows, depth, counts) in SHAPES.items():
            integer_product(cuda, signs, low_a, low_b, shape, rows, depth, counts)


def integer_product(
    cuda: Cuda, signs: str, low_a: int, low_b: int, shape: str, rows: int, depth: int, counts: Sequence[int]
) -> None:
    numbers = random.Random(depth)
    a = [[numbers.randint(low_a, low_a + 255) for _ in range(depth)] for _ in range(rows)]
    b = [[numbers.randint(low_b, low_b + 255) for _ in range(depth)] for _ in range(8)]
    c = [[numbers.choice((-(2**31), 2**31 - 1, numbers.randint(-9, 9))) for _ in range(8)] for _ in range(rows)]

    def exact(i: int, j: int) -> int:
        return c[i][j] + sum(x * y for x, y in zip(a[i], b[j], strict=True))

    head = f"mma.sync.aligned.{shape}.row.col"
    assert multiply(cuda, f"{head}.s32.{signs}.s32", a, b, c, counts) == layout(exact, counts[2])
    clamped = layout(lambda i, j: max(-(2**31), min(2**31 - 1, exact(i, j))), counts[2])
    assert multiply(cuda, f"{head}.satfinite.s32.{signs}.s32", a, b, c, counts) == clamped


def half_products(cuda: Cuda) -> None:
    for result in ("f32", "f16"):
        for depth, counts in ((16, (4, 2)), (8, (2, 1))):
            half_product(cuda, result, depth, counts)


def half_product(cuda: Cuda, result: str, depth: int, counts: tuple[int, int]) -> None:
    numbers = random.Random(4)
    # small whole numbers: every sum is exact, so every order of summing gives the same bits
    a = [[float(numbers.randint(-8, 8)) for _ in range(depth)] for _ in range(16)]
    b = [[float(numbers.randint(-8, 8)) for _ in range(depth)] for _ in range(8)]
    raw_a, raw_b = ([list(struct.pack(f"<{depth}e", *row)) for row in m] for m in (a, b))

    def start(i: int, j: int) -> float:
        return i - j

    def end(i: int, j: int) -> float:
        return start(i, j) + sum(x * y for x, y in zip(a[i], b[j], strict=True))

    def bits(value: Callable[[int, int], float]) -> Callable[[int, int], int]:
        """Of the accumulator at row i, column j; float16: two columns of row i, or where j is odd of the 8th below."""

        def one(i: int, j: int) -> int:
            if result == "f32":
                return int.from_bytes(struct.pack("<f", value(i, j)), "little")
            row, column = i + 8 * (j % 2), j // 2 * 2
            return int.from_bytes(struct.pack("<2e", value(row, column), value(row, column + 1)), "little")

        return one

    registers = 4 if result == "f32" else 2
    c = [[bits(start)(i, j) for j in range(8)] for i in range(16 if result == "f32" else 8)]
    instruction = f"mma.sync.aligned.m16n8k{depth}.row.col.{result}.f16.f16.{result}"
    assert multiply(cuda, instruction, raw_a, raw_b, c, (*counts, registers)) == layout(bits(end), registers)


def loaded_matrices(cuda: Cuda) -> None:
    for count in (1, 2, 4):
        for transposed in (False, True):
            load_matrices(cuda, count, transposed)


def load_matrices(cuda: Cuda, count: int, transposed: bool) -> None:
    """Rows come from the first 8 * count lanes' addresses, backwards here; those of the others are not looked at."""
    names = [f"%w{10 + i}" for i in range(count)]
    last = 8 * count - 1
    body = f"""
    ld.param.u64 %d1, [in]; mad.wide.u32 %d1, %t, 16, %d1; mov.u32 %w1, s; mad.lo.u32 %w2, %t, 16, %w1;
    ld.global.v4.u32 {{%w4, %w5, %w6, %w7}}, [%d1]; st.shared.v4.u32 [%w2], {{%w4, %w5, %w6, %w7}}; bar.sync 0;
    sub.u32 %w3, {last}, %t; mad.lo.u32 %w2, %w3, 16, %w1;
    ldmatrix.sync.aligned.m8n8.x{count}{'.trans' if transposed else ''}.shared.b16 {{{', '.join(names)}}}, [%w2];
    mul.wide.u32 %d2, %t, {4 * (count - 1)}; add.u64 %o, %o, %d2;
    """ + " ".join(f"st.global.u32 [%o+{4 * i}], {name};" for i, name in enumerate(names))
    source, out = cuda.allocate(512), cuda.allocate(512)
    cuda.write(source, struct.pack("256H", *range(256)))
    cuda.run(cuda.function(cuda.module(module(body, ("out", "in"), shared=512)), "k"), out, source)

    def element(matrix: int, row: int, column: int) -> int:
        if transposed:
            row, column = column, row
        return (last - (matrix * 8 + row)) * 8 + column

    expected = [
        element(m, lane // 4, 2 * (lane % 4)) | element(m, lane // 4, 2 * (lane % 4) + 1) << 16
        for lane in range(32)
        for m in range(count)
    ]
    assert cuda.words(out, 32 * count) == expected, (count, transposed)


CHECKS = [integer_products, half_products, loaded_matrices]
