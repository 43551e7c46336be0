"""Small kernels written in PTX for the driver's tests, which need no compiler then.

fill(out, value, n): word i of `out` becomes `value`, one thread a word. increment(out): adds 1 to a word, one thread.
gate(flag): waits until the host writes a word other than 0, and so holds its stream for as long as a test likes.
nothing(): nothing. bounded(): nothing, in blocks of at most 64 threads.
"""

HEADER = ".version 8.5\n.target sm_87\n.address_size 64\n"

KERNELS = (
    HEADER
    + """
.global .align 4 .u32 counter[4];

.visible .entry fill(.param .u64 fill_out, .param .u32 fill_value, .param .u32 fill_n)
{
    .reg .pred %p<2>;
    .reg .b32 %r<7>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [fill_out];
    ld.param.u32 %r1, [fill_value];
    ld.param.u32 %r2, [fill_n];
    mov.u32 %r3, %ctaid.x;
    mov.u32 %r4, %ntid.x;
    mov.u32 %r5, %tid.x;
    mad.lo.s32 %r6, %r3, %r4, %r5;
    setp.ge.u32 %p1, %r6, %r2;
    @%p1 bra FILL_DONE;
    cvta.to.global.u64 %rd2, %rd1;
    mul.wide.u32 %rd3, %r6, 4;
    add.s64 %rd2, %rd2, %rd3;
    st.global.u32 [%rd2], %r1;
FILL_DONE:
    ret;
}

.visible .entry increment(.param .u64 increment_out)
{
    .reg .pred %p<2>;
    .reg .b32 %r<4>;
    .reg .b64 %rd<3>;
    ld.param.u64 %rd1, [increment_out];
    mov.u32 %r1, %tid.x;
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra INCREMENT_DONE;
    cvta.to.global.u64 %rd2, %rd1;
    ld.global.u32 %r2, [%rd2];
    add.s32 %r3, %r2, 1;
    st.global.u32 [%rd2], %r3;
INCREMENT_DONE:
    ret;
}

.visible .entry gate(.param .u64 gate_flag)
{
    .reg .pred %p<2>;
    .reg .b32 %r<2>;
    .reg .b64 %rd<3>;
    ld.param.u64 %rd1, [gate_flag];
    cvta.to.global.u64 %rd2, %rd1;
GATE_WAIT:
    ld.volatile.global.u32 %r1, [%rd2];
    setp.eq.s32 %p1, %r1, 0;
    @%p1 bra GATE_WAIT;
    ret;
}

.visible .entry nothing()
{
    ret;
}

.visible .entry bounded()
.maxntid 64, 1, 1
{
    ret;
}
"""
)
