"""Which GPU a process here would find: the driver's own words, without PyCUDA and without a context.

Called by `orind doctor`, in a process that ends soon: a driver stays loaded and initialised.
"""

from __future__ import annotations

import ctypes

NAME_BYTES = 256
DRIVER = "libcuda.so.1"


class NoGpu(Exception):
    """What is missing, in words."""


def first_gpu() -> str:
    """Its name, and the newest CUDA that its driver knows. Raises NoGpu."""
    try:
        driver = ctypes.CDLL(DRIVER)
    except OSError as error:
        missing = f"{DRIVER} not found" if "No such file" in str(error) else str(error)
        raise NoGpu(f"no driver: {missing}") from error
    version, count, device = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    name = ctypes.create_string_buffer(NAME_BYTES)
    _check(driver, "cuInit", 0)
    _check(driver, "cuDriverGetVersion", ctypes.byref(version))
    _check(driver, "cuDeviceGetCount", ctypes.byref(count))
    if not count.value:
        raise NoGpu("the driver finds no GPU")
    _check(driver, "cuDeviceGet", ctypes.byref(device), 0)
    _check(driver, "cuDeviceGetName", name, NAME_BYTES, device)
    more = f", the first of {count.value}" if count.value > 1 else ""
    cuda = f"CUDA {version.value // 1000}.{version.value % 1000 // 10}"
    return f"{name.value.decode(errors='replace')}{more} (driver: {cuda})"


def _check(driver: ctypes.CDLL, function: str, *arguments: object) -> None:
    try:
        code = int(driver[function](*arguments))
        text = ctypes.c_char_p()
        if code:
            driver.cuGetErrorString(code, ctypes.byref(text))
    except AttributeError as error:  # a library of that name which lacks a function
        raise NoGpu(f"no driver: {error}") from error
    if code:
        raise NoGpu(f"the driver finds no GPU: {function}: {(text.value or b'').decode()} ({code})")
