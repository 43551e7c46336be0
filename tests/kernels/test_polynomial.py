"""exp, sigmoid, softplus: error against float64 over the whole range, the ends, the same bits however it is called."""

import ast
import inspect
import tracemalloc

import numpy as np
import pytest

from orind.kernels.pre import polynomial

NAMES = ("exp", "sigmoid", "softplus")
LIMIT_ULP = {"exp": 1.0, "sigmoid": 2.41, "softplus": 2.87}  # as polynomial.py states
INF, NAN = np.float32(np.inf), np.float32(np.nan)


def reference(name, x):
    x = x.astype(np.float64)
    with np.errstate(over="ignore"):
        if name == "exp":
            return np.exp(x)
        fade = np.exp(-np.abs(x))
        if name == "sigmoid":
            return np.where(x < 0, fade, 1.0) / (1.0 + fade)
        return np.maximum(x, 0.0) + np.log1p(fade)


def every_kind_of_float():
    """All exponents and signs with 512 mantissas each, and a dense stretch where the results move."""
    mantissas = np.unique(np.concatenate([np.arange(8), 2**23 - 1 - np.arange(8), np.arange(0, 2**23, 16901)]))
    bits = (np.arange(255, dtype=np.int64)[:, None] << 23) + mantissas
    whole = bits.astype(np.int32).reshape(-1).view(np.float32)
    return np.concatenate([whole, -whole, np.linspace(-105, 90, 400_001, dtype=np.float32)])


@pytest.mark.parametrize("name", NAMES)
def test_error_over_the_whole_range(name):
    x = every_kind_of_float()
    y, exact = getattr(polynomial, name)(x), reference(name, x)
    with np.errstate(over="ignore"):
        finite = np.isfinite(exact.astype(np.float32))
    np.testing.assert_array_equal(np.isfinite(y), finite)
    assert (y[~finite] == INF).all()
    y, exact = y[finite].astype(np.float64), exact[finite]
    exponent = np.floor(np.log2(np.maximum(exact, 2.0**-126)))
    assert (np.abs(y - exact) / np.exp2(exponent - 23)).max() <= LIMIT_ULP[name]
    if name == "sigmoid":
        assert y.min() >= 0.0 and y.max() <= 1.0


@pytest.mark.parametrize(("name", "pairs"), [
    ("exp", [(-INF, 0), (INF, INF), (0, 1), (-0.0, 1), (-104, 0), (-103.9, 2.0**-149), (89, INF), (1e38, INF),
             (-1e38, 0), (1e-45, 1)]),
    ("sigmoid", [(-INF, 0), (INF, 1), (0, 0.5), (-0.0, 0.5), (100, 1), (-200, 0), (1e-45, 0.5)]),
    ("softplus", [(-INF, 0), (INF, INF), (100, 100), (3e38, 3e38), (-200, 0)]),
])
def test_ends_are_exact(name, pairs):
    x = np.array([pair[0] for pair in pairs], np.float32)
    assert getattr(polynomial, name)(x).tolist() == np.array([pair[1] for pair in pairs], np.float32).tolist()


@pytest.mark.parametrize("name", NAMES)
def test_nan_stays_nan_and_touches_nobody(name):
    y = getattr(polynomial, name)(np.array([1, NAN, -NAN, 2], np.float32))
    assert np.isnan(y).tolist() == [False, True, True, False]


@pytest.mark.parametrize("name", NAMES)
def test_same_bits_for_any_length_place_and_layout(name):
    function = getattr(polynomial, name)
    x = np.random.default_rng(5).normal(0, 20, 2 * polynomial.BLOCK + 77).astype(np.float32)
    whole = function(x)
    one_by_one = np.array([function(x[i : i + 1])[0] for i in range(0, x.size, 997)])
    np.testing.assert_array_equal(one_by_one.view(np.int32), whole[::997].copy().view(np.int32))
    np.testing.assert_array_equal(function(x[3:]), whole[3:])
    np.testing.assert_array_equal(function(x[::-1]), whole[::-1])
    square = x[:1200].reshape(30, 40)
    np.testing.assert_array_equal(function(square.T), whole[:1200].reshape(30, 40).T)
    strided = np.zeros((30, 80), np.float32)
    assert function(square, out=strided[:, ::2]).base is strided
    np.testing.assert_array_equal(strided[:, ::2], whole[:1200].reshape(30, 40))
    assert not strided[:, 1::2].any()
    kept = x.copy()
    function(x)
    np.testing.assert_array_equal(x, kept)
    assert function(kept, out=kept) is kept
    np.testing.assert_array_equal(kept, whole)


@pytest.mark.parametrize("name", NAMES)
def test_equals_a_scalar_computation_rounded_step_by_step(name):
    """The judge of `no FMA, nothing reordered`: each step in float64, rounded to float32 at once.

    Exact for + and *, and for / by the known bound (53 >= 2 * 24 + 2): double rounding never shows.
    """
    f = np.float32

    def up(a, b):
        return f(np.float64(a) + np.float64(b))

    def by(a, b):
        return f(np.float64(a) * np.float64(b))

    def over(a, b):
        return f(np.float64(a) / np.float64(b))

    def exp(x):
        x = max(min(x, polynomial.EXP_HIGH), polynomial.EXP_LOW)
        n = f(np.rint(np.float64(by(x, polynomial.LOG2_E))))
        r = up(up(x, -by(n, polynomial.LN2_HIGH)), -by(n, polynomial.LN2_LOW))
        q = polynomial.EXP_TERMS[-1]
        for term in polynomial.EXP_TERMS[-2::-1]:
            q = up(by(q, r), term)
        return f(np.ldexp(np.float64(up(up(by(by(q, r), r), r), f(1))), int(n)))

    def sigmoid(x):
        fade = exp(-abs(x))
        return over(fade if x < 0 else f(1), up(fade, f(1)))

    def softplus(x):
        fade = exp(-abs(x))
        s = over(fade, up(fade, f(2)))
        z = by(s, s)
        q = polynomial.LOG_TERMS[-1]
        for term in polynomial.LOG_TERMS[-2::-1]:
            q = up(by(q, z), term)
        return up(up(by(by(q, z), s), by(s, f(2))), max(x, f(0)))

    x = np.random.default_rng(1).uniform(-110, 88, 3000).astype(np.float32)
    x[:1500] /= 30
    with np.errstate(under="ignore"):
        judged = np.array([{"exp": exp, "sigmoid": sigmoid, "softplus": softplus}[name](value) for value in x])
    np.testing.assert_array_equal(getattr(polynomial, name)(x).view(np.int32), judged.view(np.int32))


def test_no_library_transcendental_is_called():
    used = {node.attr for node in ast.walk(ast.parse(inspect.getsource(polynomial)))
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "np"}
    arithmetic = {"add", "subtract", "multiply", "divide", "minimum", "maximum", "abs", "negative", "less",
                  "right_shift", "left_shift", "copyto", "empty", "ascontiguousarray", "errstate", "float32", "int32"}
    assert used == arithmetic


def test_refuses_what_it_does_not_compute_with():
    with pytest.raises(TypeError, match="float32 is needed, not float64"):
        polynomial.exp(np.zeros(3))
    with pytest.raises(ValueError, match="out must be float32"):
        polynomial.exp(np.zeros(3, np.float32), out=np.zeros(3))
    with pytest.raises(ValueError, match="of shape"):
        polynomial.exp(np.zeros(3, np.float32), out=np.zeros(4, np.float32))


def test_empty():
    assert polynomial.softplus(np.zeros((0, 4), np.float32)).shape == (0, 4)


def test_temporaries_are_small_however_long_the_array():
    x = np.ones(1 << 20, np.float32)
    out = np.empty_like(x)
    polynomial.softplus(x, out=out)
    tracemalloc.start()
    try:
        polynomial.softplus(x, out=out)
        assert tracemalloc.get_traced_memory()[1] < 8 * 4 * polynomial.BLOCK
    finally:
        tracemalloc.stop()
