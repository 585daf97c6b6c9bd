"""Signatures of kernels, and arguments bound to them."""

from __future__ import annotations

import numpy as np
import pytest

import tiledsl.language as tl
from tiledsl.dtypes import bfloat16
from tiledsl.dtypes import int32
from tiledsl.errors import SyntaxNotSupported
from tiledsl.errors import TileError
from tiledsl.errors import TypeMismatch
from tiledsl.frontend.lower_ast import lower_function
from tiledsl.frontend.specialize import MISSING
from tiledsl.frontend.specialize import Parameter
from tiledsl.frontend.specialize import signature_of
from tiledsl.ir.markers import Auto
from tiledsl.ir.specs import AutoInt
from tiledsl.ir.specs import NoneSpec
from tiledsl.ir.specs import ScalarSpec
from tiledsl.ir.specs import TensorSpec
from tiledsl.ir.specs import spec
from tiledsl.ir.types import ScalarType
from tiledsl.ir.types import TensorType


def kernel(
    a: tl.Tensor,
    n: tl.int64,
    s,
    flag: bool = True,
    BM: tl.constexpr = tl.auto,
    BN: tl.constexpr = tl.auto(64, 128),
    BK: tl.constexpr = 32,
    NAME: tl.constexpr = None,
):
    tl.static_assert(BM.__class__ is not None)  # fmt: skip


def no_future_annotations() -> None:
    scope: dict[str, object] = {"tl": tl}
    exec(
        "def f(a: tl.Tensor, n: tl.int32, B: tl.constexpr = tl.constexpr(4), *, x: int = 3): pass",
        scope,
    )
    return scope["f"]


def test_signature() -> None:
    signature = signature_of(kernel)
    assert signature.name == "kernel"
    assert str(signature) == "kernel(a, n, s, flag, BM, BN, BK, NAME)"
    assert signature.parameters == (
        Parameter("a", "run-time", "tensor"),
        Parameter("n", "run-time", tl.int64),
        Parameter("s", "run-time", None),
        Parameter("flag", "run-time", None, True),
        Parameter("BM", "constexpr", "constexpr", Auto()),
        Parameter("BN", "constexpr", "constexpr", Auto((64, 128))),
        Parameter("BK", "constexpr", "constexpr", 32),
        Parameter("NAME", "constexpr", "constexpr", None),
    )
    assert not signature.parameters[0].has_default
    assert signature.parameters[-1].has_default
    assert signature.parameters[4].is_constexpr
    assert signature_of(kernel) is signature


def test_annotations_that_are_objects() -> None:
    a, n, b, x = signature_of(no_future_annotations()).parameters
    assert (a.annotation, n.annotation, b.annotation, x.annotation) == (
        "tensor",
        int32,
        "constexpr",
        None,
    )
    assert b.default == 4
    assert a.default is MISSING


def variadic(*args):
    pass


def test_a_kernel_has_a_fixed_list_of_parameters() -> None:
    with pytest.raises(SyntaxNotSupported, match="fixed list of parameters"):
        signature_of(variadic)
    with pytest.raises(SyntaxNotSupported):
        signature_of(len)


def test_auto() -> None:
    assert tl.auto == Auto()
    assert tl.auto(64, 128) == Auto((64, 128))
    with pytest.raises(TileError, match="at least one choice"):
        tl.auto()


def test_auto_int() -> None:
    import pickle

    n = AutoInt(128, "BM")
    assert n == 128
    assert n.name == "BM"
    assert type(n * 2) is int
    assert str(n) == repr(n) == f"{n}" == "128"
    again = pickle.loads(pickle.dumps(n))
    assert (again, again.name) == (128, "BM")


def arguments(a: tl.Tensor, n, bias, s, BM: tl.constexpr = 8):
    tl.static_assert(bias is None)
    a.store((0, 0), tl.zeros((BM, BM), tl.float32) + n)


def test_body_arguments_follow_the_signature() -> None:
    tensor = TensorSpec(bfloat16, 2, 1, tma=True, align_bytes=16)
    specs = {"s": ScalarSpec(tl.float32), "bias": NoneSpec(), "n": ScalarSpec(int32), "a": tensor}
    graph = lower_function(arguments, specs, {})
    assert [(v.name, v.type) for v in graph.args] == [
        ("a", TensorType(2, bfloat16, 1, True, 16)),
        ("n", ScalarType(int32)),
        ("s", ScalarType(tl.float32)),
    ]
    assert graph.constants == {"BM": 8}


def default_scalar(out: tl.Tensor, scale=0.5):
    out.store(0, out.load(0, 4) * scale)


def test_a_missing_argument_takes_its_default(run) -> None:
    out = np.ones(4, np.float32)
    run(default_scalar, out)
    assert out.tolist() == [0.5] * 4


@pytest.mark.parametrize(
    ("specs", "constants", "message"),
    [
        ({"out": spec(bfloat16, 1), "x": NoneSpec()}, {}, "default_scalar() has no parameter 'x'"),
        ({}, {}, "default_scalar(): argument 'out' is missing"),
    ],
)
def test_names_that_do_not_fit(specs, constants, message: str) -> None:
    with pytest.raises(TypeMismatch) as caught:
        lower_function(default_scalar, specs, constants)
    assert caught.value.message == message


def needs_auto(out: tl.Tensor, BM: tl.constexpr = tl.auto):
    out.store(0, BM)


def test_constexprs_need_values() -> None:
    with pytest.raises(TypeMismatch, match=r"is tl\.auto, and no value was chosen"):
        lower_function(needs_auto, {"out": spec(bfloat16, 1)}, {})
    with pytest.raises(TypeMismatch, match=r"is a tl\.constexpr, got scalar<i32, of any sign>"):
        lower_function(needs_auto, {"out": spec(bfloat16, 1), "BM": ScalarSpec(int32)}, {})
    with pytest.raises(TypeMismatch, match="must be a Python function"):
        lower_function(3, {}, {})  # type: ignore[arg-type]
