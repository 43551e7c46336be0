"""PTX changed at random, loaded: run as a process of its own by test_rubbish_host.py, so that a crash costs only it.

    python rubbish_checks.py LIBRARY SEEDS

Prints each seed before it is tried, and at the end the result codes with their counts as JSON.
"""

from __future__ import annotations

import ctypes
import json
import random
import resource
import sys
from collections import Counter
from ctypes import byref, c_char_p, c_uint64
from pathlib import Path

from driver_calls import Cuda
from driver_ptx import KERNELS

MEMORY_BYTES = 2 << 30
"""What a process may take beyond what it has once a context is there."""

TOKENS = (
    *("{", "}", ";", ",", "(", ")", "[", "]", ":", "::", "|", "!", "$", "_", "=", "<", ">", "+", "-", "/*", "//", '"'),
    *("@%p1", ".v4", "0x", "0f3F800000", "-1", "4294967295", "99999999999999999999", "%r1", "call", "ret;", ".entry"),
    *(".func", ".file", ".loc", ".branchtargets", ".align 0", ".reg .b32 %q<3>;", ".shared .align 4 .b8 z[8];"),
    *(".param .b32 a", ".version 8.5", "vprintf, (a)", "[9999999999]"),
)


def mutated(text: str, draw: random.Random) -> str:
    for _ in range(draw.choice((1, 1, 2, 5))):
        at, to, length = draw.randrange(len(text)), draw.randrange(len(text)), draw.choice((1, 3, 20, 200))
        changed = (
            text[:at] + draw.choice(TOKENS) + text[at:],
            text[:at] + text[at + length :],
            text[:at] + text[to : to + length] + text[at:],
            text[:at] + draw.choice(text) + text[at + 1 :],
            text[:at] + text[at:].replace(draw.choice("0123456789"), "4294967295", 1),
        )
        text = draw.choice(changed) or "x"
    return text


def limit_memory(beyond: int) -> None:
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + beyond, size + beyond))


def stacks_of(size: int) -> None:
    """For the threads to come, whoever starts them."""
    libc, attributes = ctypes.CDLL(None), ctypes.create_string_buffer(256)  # more than a pthread_attr_t has anywhere
    libc.pthread_attr_init(attributes)
    failed = libc.pthread_attr_setstacksize(attributes, ctypes.c_size_t(size))
    if failed := failed or libc.pthread_setattr_default_np(attributes):
        raise OSError(failed, "pthread_setattr_default_np")


def main() -> None:
    cuda = Cuda(Path(sys.argv[1])).initialise()
    cuda.create_context()
    limit_memory(MEMORY_BYTES)
    codes: Counter[int] = Counter()
    for seed in range(int(sys.argv[2])):
        print(seed, flush=True)
        handle = c_uint64()
        code = cuda.call("cuModuleLoadData", byref(handle), c_char_p(mutated(KERNELS, random.Random(seed)).encode()))
        codes[code] += 1
        if code == 0:
            cuda.check("cuModuleUnload", handle)
    print(json.dumps(codes))


if __name__ == "__main__":
    main()
