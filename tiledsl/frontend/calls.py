"""Calls: builtins, methods, Python's own functions, and helpers, which are inlined."""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Callable
from collections.abc import Hashable
from types import BuiltinFunctionType
from types import BuiltinMethodType
from types import FunctionType
from types import ModuleType
from typing import cast

from tiledsl.dtypes import DType
from tiledsl.errors import SyntaxNotSupported
from tiledsl.errors import TypeMismatch
from tiledsl.frontend.attributes import BoundMethod
from tiledsl.frontend.attributes import DtypePredicate
from tiledsl.frontend.dispatch import Return
from tiledsl.frontend.dispatch import evaluate
from tiledsl.frontend.dispatch import evaluate_all
from tiledsl.frontend.dispatch import expression
from tiledsl.frontend.dispatch import fold
from tiledsl.frontend.dispatch import run_block
from tiledsl.frontend.scope import POISON
from tiledsl.frontend.scope import Frame
from tiledsl.frontend.scope import Poisoned
from tiledsl.frontend.source import plain_function
from tiledsl.frontend.source import source_of
from tiledsl.frontend.unsupported import LANGUAGE_MODULE
from tiledsl.frontend.unsupported import function_twin
from tiledsl.ir import operators
from tiledsl.ir.builtin import Builtin
from tiledsl.ir.markers import LanguageObject
from tiledsl.ir.markers import ObjectMethod
from tiledsl.ir.markers import RangeSpec
from tiledsl.ir.markers import Tensor
from tiledsl.ir.markers import constexpr
from tiledsl.ir.markers import tensor
from tiledsl.ir.markers import tensor_descriptor
from tiledsl.ir.markers import unwrap
from tiledsl.ir.op import Value
from tiledsl.ir.operands import Operand
from tiledsl.ir.operands import describe
from tiledsl.ir.operands import is_sequence
from tiledsl.ir.ops import control
from tiledsl.ir.ops import elementwise_functions as functions
from tiledsl.ir.ops.program import static_print

Arguments = tuple[object, ...]
Keywords = dict[str, object]
Handler = Callable[[Frame, ast.Call, Arguments, Keywords], object]


@expression(ast.Call)
def lower_call(frame: Frame, node: ast.Call) -> object:
    """`callee(...)`."""
    callee = evaluate(frame, node.func)
    args = evaluate_all(frame, node.args)
    keywords = _keywords(frame, node.keywords)
    return call(frame, node, callee, args, keywords)


def _keywords(frame: Frame, nodes: list[ast.keyword]) -> Keywords:
    out: Keywords = {}
    for node in nodes:
        if node.arg is None:
            raise SyntaxNotSupported(
                "** in a call is not part of the language", hint="name the arguments"
            )
        out[node.arg] = evaluate(frame, node.value)
    return out


def call(
    frame: Frame, node: ast.Call, callee: object, args: Arguments, keywords: Keywords
) -> object:
    """Calls what an expression gave."""
    match callee:
        case Builtin():
            return _call_builtin(frame, node, cast("Builtin[..., object]", callee), args, keywords)
        case BoundMethod(function=function, value=value):
            return _call_builtin(frame, node, function, (value, *args), keywords)
        case ObjectMethod(function=function, owner=owner):
            return _call_builtin(frame, node, function, (owner, *args), keywords)
        case DtypePredicate(result=result):
            if args or keywords:
                raise TypeMismatch("a predicate of a dtype takes no arguments")
            return result
        case _:
            return _call_python(frame, node, callee, args, keywords)


def _call_builtin(
    frame: Frame,
    node: ast.Call,
    function: Builtin[..., object],
    args: Arguments,
    keywords: Keywords,
) -> object:
    builder = frame.mark(node)
    saved = builder.apply
    builder.apply = lambda fn, values: call(frame, node, fn, tuple(values), {})
    try:
        return function.fn(builder, *args, **keywords)
    except TypeError as error:
        check_arguments(function.name, inspect.signature(function), args, keywords)
        raise TypeMismatch(f"{function.name}(): {error}") from error
    finally:
        builder.apply = saved


def check_arguments(
    name: str, signature: inspect.Signature, args: Arguments, keywords: Keywords
) -> inspect.BoundArguments:
    """Binds arguments to parameters. Raises TypeMismatch where they do not fit."""
    try:
        bound = signature.bind(*args, **keywords)
    except TypeError as error:
        raise TypeMismatch(
            f"{name}(): {error}", hint=f"its parameters are {_plain(signature)}"
        ) from None
    bound.apply_defaults()
    return bound


def _plain(signature: inspect.Signature) -> inspect.Signature:
    parameters = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    return signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty)


# ---------------------------------------------------------------------- Python's functions
def _call_python(
    frame: Frame, node: ast.Call, callee: object, args: Arguments, keywords: Keywords
) -> object:
    handler = _PYTHON.get(callee) if isinstance(callee, Hashable) else None
    if handler is not None:
        return _call_handler(frame, node, callee, handler, args, keywords)
    if callee is constexpr and len(args) == 1:
        return unwrap(args[0])
    function = plain_function(callee)
    if function is not None:
        if function is callee and not _has_values((args, keywords)) and is_host_function(function):
            return _call_host(function, args, keywords)
        return inline(frame, node, function, args, keywords)
    host = callee in (int, float, bool, str, tuple, list) if isinstance(callee, type) else False
    if host or isinstance(callee, BuiltinFunctionType | BuiltinMethodType):
        name = getattr(callee, "__name__", "function")
        if not _has_values((args, keywords)):
            return _call_host(cast("Callable[..., object]", callee), args, keywords)
        if isinstance(getattr(callee, "__self__", None), list):
            raise TypeMismatch(
                f"a list cannot be changed in place, as {name}() does",
                hint="write x = x + [tile] in a tl.static_range loop, or carry one tile "
                "through the loop",
            )
        raise TypeMismatch(f"{name}() takes compile-time values only", hint=_conversion_hint(name))
    if isinstance(callee, DType):
        raise TypeMismatch(f"a dtype cannot be called: {callee!r}", hint=f"write x.to({callee!r})")
    raise TypeMismatch(f"{describe(callee)} cannot be called in a kernel")


def _call_handler(
    frame: Frame,
    node: ast.Call,
    callee: object,
    handler: Handler,
    args: Arguments,
    keywords: Keywords,
) -> object:
    name = getattr(callee, "__name__", "function")
    try:
        return handler(frame, node, args, keywords)
    except (IndexError, TypeError, ValueError) as error:
        raise TypeMismatch(f"{name}(): {error}") from error


def _call_host(function: Callable[..., object], args: Arguments, keywords: Keywords) -> object:
    return unwrap(fold(functools.partial(function, *args, **keywords)))


def _conversion_hint(name: str) -> str | None:
    target = {"int": "tl.int32", "float": "tl.float32", "bool": "tl.int1"}.get(name)
    if target:
        return f"write x.to({target})"
    twin = function_twin(name)
    return f"write {twin}" if twin else None


def _has_values(x: object) -> bool:
    """Whether a run-time value is somewhere in arguments."""
    if isinstance(x, dict):
        return any(_has_values(v) for v in cast("Keywords", x).values())
    if is_sequence(x):
        return any(_has_values(v) for v in x)
    return isinstance(x, Value | RangeSpec)


def is_host_function(function: FunctionType) -> bool:
    """Whether a function is ordinary Python: neither it nor what it calls names the language."""
    return _is_host(function, set())


def _is_host(function: FunctionType, seen: set[FunctionType]) -> bool:
    if function in seen:
        return True
    seen.add(function)
    cells = function.__closure__ or ()
    reached = [c.cell_contents for c in cells if _is_filled(c)]
    reached += [
        function.__globals__[n] for n in function.__code__.co_names if n in function.__globals__
    ]
    for value in reached:
        if isinstance(value, Builtin) or (
            isinstance(value, ModuleType) and value.__name__ == LANGUAGE_MODULE
        ):
            return False
        inner = plain_function(value)
        if inner is not None and (inner is not value or not _is_host(inner, seen)):
            return False
    return True


def _is_filled(cell: object) -> bool:
    try:
        cell.cell_contents  # type: ignore[attr-defined]  # noqa: B018
    except ValueError:
        return False
    return True


def sequence(x: object, what: str) -> list[object]:
    """The elements of a tuple, or of a range known at compile time."""
    if is_sequence(x):
        return list(x)
    if isinstance(x, RangeSpec):
        bounds = [b for b in (x.lower, x.upper, x.step) if isinstance(b, int)]
        if len(bounds) == 3:
            return list(range(*bounds))
    raise TypeMismatch(f"{what} needs a tuple or a range known at compile time, got {describe(x)}")


def _python_min_max(
    frame: Frame, node: ast.Call, args: Arguments, keywords: Keywords, *, name: str
) -> object:
    _no_keywords(name, keywords)
    items = sequence(args[0], f"{name}()") if len(args) == 1 else list(args)
    if not _has_values(items):
        return fold(max if name == "max" else min, items)
    builder = frame.mark(node)
    pick = functions.maximum.fn if name == "max" else functions.minimum.fn
    return functools.reduce(lambda x, y: pick(builder, x, y), cast("list[Operand]", items))


def _python_range(frame: Frame, node: ast.Call, args: Arguments, keywords: Keywords) -> object:
    return _call_builtin(frame, node, cast("Builtin[..., object]", control.range), args, keywords)


def _python_abs(frame: Frame, node: ast.Call, args: Arguments, keywords: Keywords) -> object:
    return _call_builtin(frame, node, cast("Builtin[..., object]", functions.abs), args, keywords)


def _python_sum(frame: Frame, node: ast.Call, args: Arguments, keywords: Keywords) -> object:
    _no_keywords("sum", keywords)
    items = sequence(args[0], "sum()")
    builder = frame.mark(node)

    def add(x: object, y: object) -> object:
        if isinstance(x, Value) or isinstance(y, Value):
            return operators.binary(builder, "+", cast("Operand", x), cast("Operand", y))
        return fold(lambda: x + y)  # type: ignore[operator]

    return functools.reduce(add, items) if items else 0


def _python_len(frame: Frame, node: ast.Call, args: Arguments, keywords: Keywords) -> object:
    del frame, node
    _no_keywords("len", keywords)
    if len(args) == 1 and isinstance(args[0], Value):
        raise TypeMismatch(f"len() needs a tuple, got {describe(args[0])}", hint="use x.shape")
    return fold(len, *args)  # type: ignore[arg-type]


def _python_zip(frame: Frame, node: ast.Call, args: Arguments, keywords: Keywords) -> object:
    del frame, node
    strict = keywords.pop("strict", None)
    _no_keywords("zip", keywords)
    return tuple(zip(*(sequence(x, "zip()") for x in args), strict=bool(strict)))


def _python_enumerate(frame: Frame, node: ast.Call, args: Arguments, keywords: Keywords) -> object:
    del frame, node
    start = cast("int", (*args[1:], keywords.get("start", 0))[0])
    return tuple(enumerate(sequence(args[0], "enumerate()"), start))


def _python_reversed(frame: Frame, node: ast.Call, args: Arguments, keywords: Keywords) -> object:
    del frame, node, keywords
    return tuple(reversed(sequence(args[0], "reversed()")))


def _python_tuple(frame: Frame, node: ast.Call, args: Arguments, keywords: Keywords) -> object:
    del frame, node, keywords
    return tuple(sequence(args[0], "tuple()")) if args else ()


def _python_isinstance(frame: Frame, node: ast.Call, args: Arguments, keywords: Keywords) -> object:
    del frame, node, keywords
    value, classes = args
    wanted = cast("tuple[object, ...]", classes) if isinstance(classes, tuple) else (classes,)
    return any(_is_instance(value, c) for c in wanted)


def _is_instance(value: object, class_: object) -> bool:
    if class_ is tensor or class_ is Tensor:
        return isinstance(value, Value)
    if class_ is constexpr:
        return not isinstance(value, Value)
    if class_ is tensor_descriptor:
        return isinstance(value, LanguageObject) and value.is_descriptor
    return isinstance(class_, type) and isinstance(value, class_)


def _python_print(frame: Frame, node: ast.Call, args: Arguments, keywords: Keywords) -> object:
    return _call_builtin(frame, node, cast("Builtin[..., object]", static_print), args, keywords)


def _no_keywords(name: str, keywords: Keywords) -> None:
    if keywords:
        raise TypeMismatch(f"{name}() takes no keyword arguments in a kernel")


_PYTHON: dict[object, Handler] = {
    abs: _python_abs,
    enumerate: _python_enumerate,
    isinstance: _python_isinstance,
    len: _python_len,
    list: _python_tuple,
    max: functools.partial(_python_min_max, name="max"),
    min: functools.partial(_python_min_max, name="min"),
    print: _python_print,
    range: _python_range,
    reversed: _python_reversed,
    sum: _python_sum,
    tuple: _python_tuple,
    zip: _python_zip,
}


# ---------------------------------------------------------------------- helpers
def inline(
    frame: Frame, node: ast.Call, function: FunctionType, args: Arguments, keywords: Keywords
) -> object:
    """Lowers the body of a helper in the place of its call; returns what it returns."""
    _check_recursion(frame, function)
    source = source_of(function)
    bound = check_arguments(source.name, source.signature, args, keywords)
    callee = Frame(function, source, frame.session, caller=frame.loc(node), parent=frame)
    for name, value in bound.arguments.items():
        callee.variables[name] = unwrap(value)
    signal = run_block(callee, source.node.body)
    frame.mark(node)
    result = signal.value if isinstance(signal, Return) else None
    if result is POISON:
        raise Poisoned
    return result


def _check_recursion(frame: Frame, function: FunctionType) -> None:
    chain: list[str] = [function.__name__]
    at: Frame | None = frame
    while at is not None:
        chain.append(at.function.__name__)
        if at.function is function:
            raise SyntaxNotSupported(
                f"recursion is not part of the language: {' -> '.join(reversed(chain))}",
                hint="kernels inline the functions they call; write a loop",
            )
        at = at.parent
