"""Special registers, clocks and address windows: PTX ISA 8.5, "Special Registers", cvta, isspacep."""

from __future__ import annotations

from collections.abc import Callable

from driver_calls import Cuda

GRID, BLOCK, DYNAMIC = (3, 2, 4), (5, 3, 6), 48
THREADS = BLOCK[0] * BLOCK[1] * BLOCK[2]
STATIC = 64


def special(name: str) -> Callable[[int, int], int]:
    """Of a block and a thread, both counted along x first."""

    def place(index: int, size: tuple[int, int, int], axis: str) -> int:
        return {"x": index % size[0], "y": index // size[0] % size[1], "z": index // size[0] // size[1]}[axis]

    lane_masks: dict[str, Callable[[int], int]] = {
        "eq": lambda lane: 1 << lane,
        "lt": lambda lane: (1 << lane) - 1,
        "le": lambda lane: (2 << lane) - 1,
        "gt": lambda lane: 0xFFFFFFFF & ~((2 << lane) - 1),
        "ge": lambda lane: 0xFFFFFFFF & ~((1 << lane) - 1),
    }
    axis = name[-1]
    if name.startswith("%lanemask"):
        return lambda block, thread: lane_masks[name[-2:]](thread % 32)
    return {
        "%tid": lambda block, thread: place(thread, BLOCK, axis),
        "%ntid": lambda block, thread: BLOCK["xyz".index(axis)],
        "%ctaid": lambda block, thread: place(block, GRID, axis),
        "%nctaid": lambda block, thread: GRID["xyz".index(axis)],
        "%laneid": lambda block, thread: thread % 32,
        "%warpid": lambda block, thread: thread // 32,
        "%nwarpid": lambda block, thread: (THREADS + 31) // 32,
        "%dynamic_smem_size": lambda block, thread: DYNAMIC,
        "%total_smem_size": lambda block, thread: STATIC + DYNAMIC,
        "WARP_SZ": lambda block, thread: 32,
    }[name.split(".")[0]]


PLACES = [f"%{name}.{axis}" for name in ("tid", "ntid", "ctaid", "nctaid") for axis in "xyz"]
OTHERS = ["%laneid", "WARP_SZ", *(f"%lanemask_{test}" for test in ("eq", "lt", "le", "gt", "ge"))]
NAMES = [*PLACES, *OTHERS]
OF_THE_DEVICE = ["%warpid", "%nwarpid", "%dynamic_smem_size", "%total_smem_size"]
"""What a real GPU may lay out in a way of its own: only asked of the virtual one."""


def registers(cuda: Cuda) -> None:
    names = [*NAMES, *(OF_THE_DEVICE if cuda.virtual else [])]
    blocks = GRID[0] * GRID[1] * GRID[2]
    step = 4 * blocks * THREADS
    lines = [f"mov.u32 %w1, {name}; st.global.u32 [%o+{step * i}], %w1;" for i, name in enumerate(names)]
    ptx = f"""
.version 8.5
.target sm_87
.address_size 64
.visible .entry k(.param .u64 out) {{
    .shared .align 16 .b8 s[{STATIC}];
    .reg .pred %first; .reg .b32 %w<5>; .reg .b64 %o;
    mov.u32 %w1, %ctaid.z; mov.u32 %w3, %ctaid.y; mad.lo.u32 %w1, %w1, {GRID[1]}, %w3;
    mov.u32 %w3, %ctaid.x; mad.lo.u32 %w1, %w1, {GRID[0]}, %w3;
    mov.u32 %w2, %tid.z; mov.u32 %w3, %tid.y; mad.lo.u32 %w2, %w2, {BLOCK[1]}, %w3;
    mov.u32 %w3, %tid.x; mad.lo.u32 %w2, %w2, {BLOCK[0]}, %w3;
    mad.lo.u32 %w1, %w1, {THREADS}, %w2; ld.param.u64 %o, [out]; mad.wide.u32 %o, %w1, 4, %o;
    setp.eq.u32 %first, %w2, 0; @%first st.shared.u32 [s], %w1;
    {" ".join(lines)} ret;
}}"""
    out = cuda.allocate(4 * blocks * THREADS * len(names))
    cuda.run(cuda.function(cuda.module(ptx), "k"), out, grid=GRID, block=BLOCK, shared=DYNAMIC)
    found = cuda.words(out, blocks * THREADS * len(names))
    for i, name in enumerate(names):
        right = [special(name)(block, thread) for block in range(blocks) for thread in range(THREADS)]
        assert found[i * blocks * THREADS : (i + 1) * blocks * THREADS] == right, name


def of_the_machine(cuda: Cuda) -> None:
    """%smid below %nsmid, %gridid another for each launch, clocks that move on, a timer near the host's nanoseconds."""
    ptx = """
.version 8.5
.target sm_87
.address_size 64
.visible .entry k(.param .u64 out) {
    .reg .b32 %w<5>; .reg .b64 %o, %d<7>;
    mov.u32 %w1, %clock; mov.u64 %d1, %clock64; mov.u64 %d2, %globaltimer; mov.u32 %w2, %smid; mov.u32 %w3, %nsmid;
    mov.u64 %d3, %gridid; ld.param.u64 %o, [out]; nanosleep.u32 2000; mov.u32 %w4, %clock; mov.u64 %d4, %clock64;
    mov.u64 %d5, %globaltimer; sub.u32 %w4, %w4, %w1; sub.u64 %d4, %d4, %d1;
    cvt.u64.u32 %d6, %w2; st.global.u64 [%o], %d6; cvt.u64.u32 %d6, %w3; st.global.u64 [%o+8], %d6;
    st.global.u64 [%o+16], %d3; cvt.u64.u32 %d6, %w4; st.global.u64 [%o+24], %d6; st.global.u64 [%o+32], %d4;
    st.global.u64 [%o+40], %d2; st.global.u64 [%o+48], %d5; ret;
}"""
    function, out = cuda.function(cuda.module(ptx), "k"), cuda.allocate(56)
    grids = set()
    for _ in range(2):
        cuda.run(function, out, block=(1, 1, 1))
        words = cuda.words(out, 14)
        values = (words[i] | words[i + 1] << 32 for i in range(0, 14, 2))
        multiprocessor, count, grid, ticks, ticks64, before, after = values
        grids.add(grid)
        assert multiprocessor < count and 0 < ticks < 1 << 31 and 0 < ticks64 < 1 << 31
        assert 1 << 60 < before <= after  # since 2006, and not backwards
    assert len(grids) == 2


WINDOWS = {"shared": "s", "local": "l", "global": "g", "const": "c", "param": "p"}


def windows(cuda: Cuda) -> None:
    """A space's address as a generic one reads the same bytes, and comes back; isspacep tells the spaces apart."""
    body = []
    for number, (space, name) in enumerate(WINDOWS.items()):
        move = "mov.b64" if space == "param" else "mov.u64"
        body.append(f"{move} %d1, {name}; cvta.{space}.u64 %d2, %d1; ld.u32 %w1, [%d2+4];")
        body.append(f"st.global.u32 [%o+{16 * number}], %w1;")
        body.append(f"cvta.to.{space}.u64 %d3, %d2; setp.eq.u64 %p1, %d1, %d3; selp.u32 %w2, 1, 0, %p1;")
        body.append(f"st.global.u32 [%o+{16 * number + 4}], %w2; mov.u32 %w3, 0;")
        for bit, asked in enumerate(("shared", "local", "global", "param")):
            body.append(f"isspacep.{asked} %p1, %d2; selp.u32 %w2, {1 << bit}, 0, %p1; or.b32 %w3, %w3, %w2;")
        body.append(f"st.global.u32 [%o+{16 * number + 8}], %w3;")
    ptx = f"""
.version 8.5
.target sm_87
.address_size 64
.global .align 4 .u32 g[2] = {{0, 103}}; .const .align 4 .u32 c[2] = {{0, 104}};
.visible .entry k(.param .u64 out, .param .align 8 .b8 p[8]) {{
    .shared .align 4 .b8 s[8]; .local .align 4 .b8 l[8];
    .reg .pred %p<2>; .reg .b32 %w<4>; .reg .b64 %o, %d<4>;
    ld.param.u64 %o, [out]; st.shared.u32 [s+4], 101; st.local.u32 [l+4], 102;
    {" ".join(body)} ret;
}}"""
    out = cuda.allocate(16 * len(WINDOWS))
    cuda.write(out, bytes(16 * len(WINDOWS)))
    cuda.run(cuda.function(cuda.module(ptx), "k"), out, 0, 105, block=(1, 1, 1))
    found = cuda.words(out, 4 * len(WINDOWS))
    # a constant is in global memory here, where the ISA gives it a window of its own
    inside = {"shared": 1, "local": 2, "global": 4, "param": 8}
    for number, (space, value) in enumerate(zip(WINDOWS, (101, 102, 103, 104, 105), strict=True)):
        assert found[4 * number : 4 * number + 2] == [value, 1], space
        if space in inside:
            assert found[4 * number + 2] == inside[space], space


CHECKS = [registers, of_the_machine, windows]
