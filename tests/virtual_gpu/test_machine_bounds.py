"""Accesses just outside of each space are named: below as well as above, where an offset of -4 is a huge address."""

from __future__ import annotations

import pytest
from driver_calls import Cuda
from ptx_kernel import ILLEGAL_ADDRESS, LAUNCH_FAILED, Fresh, fault, module, words

LOCAL = ".local .align 16 .b8 l[16]; mov.u64 %d1, l; mov.u32 %w1, 7;"


@pytest.mark.virtual
@pytest.mark.parametrize(
    ("body", "said"),
    [
        (LOCAL + "ld.local.u32 %w1, [%d1+-4];", "outside of the thread's 16 bytes"),
        (LOCAL + "st.local.u32 [%d1+-4], %w1;", "outside of the thread's 16 bytes"),
        (LOCAL + "ld.local.u32 %w1, [%d1+16];", "outside of the thread's 16 bytes"),
        (LOCAL + "st.local.v4.u32 [%d1+16], {%w1, %w1, %w1, %w1};", "outside of the thread's 16 bytes"),
        (LOCAL + "cvta.local.u64 %d1, %d1; st.u32 [%d1+16], %w1;", "outside of the thread's 16 bytes"),
        ("ld.param.u32 %w1, [out+-4];", "kernel's parameters, which are 8 bytes"),
        ("ld.param.u32 %w1, [out+8];", "kernel's parameters, which are 8 bytes"),
        ("ld.param.v2.u64 {%d1, %d2}, [out];", "kernel's parameters, which are 8 bytes"),
        ("mov.u32 %w1, s; ld.shared.u32 %w2, [%w1+-4];", "outside of the block's 64 bytes"),
        ("mov.u32 %w1, s; st.shared.u32 [%w1+-4], %w2;", "outside of the block's 64 bytes"),
        ("mov.u32 %w1, s; cp.async.ca.shared.global [%w1+-4], [%o], 4;", "outside of the block's 64 bytes"),
        ("mov.u32 %w1, s; cp.async.ca.shared.global [%w1+64], [%o], 4;", "outside of the block's 64 bytes"),
        ("{ .param .b32 x; st.param.b32 [x+64], %t; }", "parameters of calls"),
        ("{ .param .b32 x; ld.param.b32 %w1, [x+-4]; }", "parameters of calls"),
    ],
)
def test_a_step_outside_of_a_space(fresh: Fresh, body: str, said: str) -> None:
    code, text = fault(fresh(), module(body, shared=64), 32)
    assert (code, said in text, "PTX line" in text) == (ILLEGAL_ADDRESS, True, True), text


def test_the_ends_of_each_space_are_inside(cuda_for_kernels: Cuda) -> None:
    body = """
    .local .align 16 .b8 l[16]; mov.u64 %d1, l; mov.u32 %w1, s; st.local.u32 [%d1], 1; st.local.u32 [%d1+12], 2;
    ld.local.u32 %w2, [%d1]; ld.local.u32 %w3, [%d1+12]; add.u32 %w2, %w2, %w3;
    cp.async.ca.shared.global [%w1+60], [%o], 4; cp.async.wait_all; ld.shared.u32 %w4, [%w1+60];
    add.u32 %w2, %w2, %w4; st.global.u32 [%o], %w2;"""
    assert words(cuda_for_kernels, module(body, shared=64), 1) == [3]


@pytest.mark.virtual
def test_atomics_on_what_nobody_wrote(fresh: Fresh) -> None:
    code, text = fault(fresh(), module("mov.u32 %w1, s; atom.shared.add.u32 %w2, [%w1], 1;", shared=64), 1)
    assert code == LAUNCH_FAILED and "updates shared memory at 0 that was never written" in text


@pytest.mark.virtual
@pytest.mark.parametrize("added", [0, 64])
def test_the_padding_behind_the_kernels_shared_memory_is_nobodys(fresh: Fresh, added: int) -> None:
    code, text = fault(fresh(), module("mov.u32 %w1, s; st.shared.u32 [%w1+8], 1;", shared=4), 1, shared=added)
    assert code == ILLEGAL_ADDRESS and "outside of the block's" in text


def test_what_the_launch_adds_lies_behind_the_padding(cuda_for_kernels: Cuda) -> None:
    before = ".extern .shared .align 16 .b8 more[];"
    body = "mov.u32 %w1, more; st.shared.u32 [%w1+60], 9; ld.shared.u32 %w2, [%w1+60]; st.global.u32 [%o], %w2;"
    assert words(cuda_for_kernels, module(body, before=before, shared=4), 1, shared=64) == [9]
