"""From a Python function to a tile graph."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping

from tiledsl.errors import InternalError
from tiledsl.errors import TileError
from tiledsl.errors import TypeMismatch
from tiledsl.frontend import attributes
from tiledsl.frontend import branches
from tiledsl.frontend import calls
from tiledsl.frontend import expressions
from tiledsl.frontend import loops
from tiledsl.frontend import statements
from tiledsl.frontend.dispatch import Return
from tiledsl.frontend.dispatch import run_block
from tiledsl.frontend.scope import POISON
from tiledsl.frontend.scope import Frame
from tiledsl.frontend.scope import Session
from tiledsl.frontend.scope import TooManyErrors
from tiledsl.frontend.source import plain_function
from tiledsl.frontend.source import source_of
from tiledsl.frontend.specialize import bind
from tiledsl.ir.analysis.axis_values import Divisors
from tiledsl.ir.builder import Builder
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.op import Value
from tiledsl.ir.operands import constant
from tiledsl.ir.operands import describe
from tiledsl.ir.ops.descriptor_functions import HostDescriptor
from tiledsl.ir.specs import Spec
from tiledsl.ir.specs import TensorSpec
from tiledsl.ir.types import ScalarType

# Modules whose handlers of AST nodes register themselves on import.
HANDLERS = (attributes, branches, calls, expressions, loops, statements)


def lower_function(
    fn: Callable[..., object], specs: Mapping[str, Spec], constexprs: Mapping[str, object]
) -> TileGraph:
    """The tile graph of a kernel for one specialisation.

    Args:
        fn: a function or a `jit` object.
        specs: what is known of the run-time arguments, by name; NoneSpec makes one a None.
        constexprs: values of the constexpr parameters by name; those left out take their default.

    Returns:
        A graph named as the function, at level TILE. Its arguments are the run-time ones in the
        order of the signature; `constants` holds the constexprs, `facts["captures"]` what was
        read from outside the kernel, by (owner, name).

    Raises:
        TileError: the first error; others found in the same run are its notes.
    """
    function = plain_function(fn)
    if function is None:
        raise TypeMismatch(f"a kernel must be a Python function, got {fn!r}")
    source = source_of(function)
    graph = TileGraph(source.name)
    session = Session(graph, Builder(graph))
    frame = Frame(function, source, session)
    bound = bind(function, specs, constexprs)
    graph.constants = dict(bound.constants)
    frame.variables.update(bound.constants)
    for name, type_ in bound.arguments:
        frame.variables[name] = _argument(session.builder, graph.body.add_arg(type_, name), specs)
    for name, items in bound.lists.items():
        frame.variables[name] = tuple(frame.variables.pop(item) for item in items)
    for name in bound.absent:
        frame.variables[name] = None
    for name, number in bound.known.items():
        value = frame.variables[name]
        assert isinstance(value, Value)
        if isinstance(value.type, ScalarType):
            frame.variables[name] = constant(session.builder, number, value.type.dtype)
    graph.facts["divisors"] = Divisors(bound.divisors, bound.numbers)
    graph.facts["fixed"] = bound.fixed
    graph.facts["map_faults"] = {
        name: spec.tma_reason
        for name, spec in specs.items()
        if isinstance(spec, TensorSpec) and not spec.tma
    }
    _run(frame, session)
    graph.facts["captures"] = dict(session.captures)
    graph.facts["fours"] = frozenset(
        name for name, spec in specs.items() if isinstance(spec, TensorSpec) and spec.fours
    )
    return graph


def _argument(b: Builder, value: Value, specs: Mapping[str, Spec]) -> object:
    """What a parameter is in the kernel."""
    spec = specs.get(value.name)
    if isinstance(spec, TensorSpec) and spec.block_shape:
        return HostDescriptor.of(b, value, spec.block_shape, spec.padding)
    return value


def _run(frame: Frame, session: Session) -> None:
    try:
        signal = run_block(frame, frame.source.node.body)
        if isinstance(signal, Return) and signal.value not in (None, POISON):
            got = describe(signal.value)
            session.report(
                TypeMismatch(
                    f"a kernel returns nothing, got {got}", signal.loc, hint="store it in a tensor"
                )
            )
    except TooManyErrors:
        pass
    except TileError as error:
        session.errors.append(error)
    except RecursionError:
        raise InternalError(
            "the frontend ran out of stack: an expression or a loop is nested too deeply"
        ) from None
    except Exception as error:
        raise InternalError(
            f"the frontend failed: {type(error).__name__}: {error}", session.builder.loc
        ) from error
    session.raise_errors()
