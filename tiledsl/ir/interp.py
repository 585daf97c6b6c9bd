"""The interpreter: the executable definition of a graph, over numpy and ml_dtypes.

Values are numpy arrays of the dtype of their type (scalars are 0-d), tensors are the caller's
arrays, pointers are int64 addresses. It knows the ops of control flow; every other op runs through
`Op.execute`, which gets this machine, or `Op.evaluate`, which gets the operands alone. Execution is
a generator: whoever waits yields, so that several roles can be driven in any order.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from inspect import isgenerator
from typing import Any
from typing import Protocol
from typing import cast

import numpy as np

from tiledsl.dtypes import DType
from tiledsl.dtypes import rounded
from tiledsl.errors import InternalError
from tiledsl.errors import LaunchError
from tiledsl.errors import TileError
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.machine import Array
from tiledsl.ir.machine import GlobalMemory
from tiledsl.ir.machine import Steps
from tiledsl.ir.op import Op
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.control import If
from tiledsl.ir.ops.control import While
from tiledsl.ir.types import ScalarType
from tiledsl.ir.types import TensorType
from tiledsl.ir.types import TileType

OnStore = Callable[[Op, Array, tuple[slice, ...]], None]


def interpret(
    graph: TileGraph,
    args: Mapping[str, Any],
    grid: tuple[int, int, int],
    *,
    on_store: OnStore | None = None,
) -> None:
    """Runs every program of a grid, x fastest; stores write into the arrays given.

    Args:
        graph: a kernel.
        args: by name, an array (with any strides) per tensor or pointer, a number per scalar.
        grid: extents of the launch grid.
        on_store: called after each store with the op, the array and the window written.

    Raises:
        LaunchError: an argument is missing, or its dtype or rank is not what the kernel takes.
        TileError: at the source line of an op that cannot run.
    """
    memory = GlobalMemory()
    values = bind(graph, args, memory)
    for program_id in _programs(grid):
        program = Interpreter(memory, program_id, grid, values, on_store)
        finish(program.run_region(graph.body, ()))


def _programs(grid: tuple[int, int, int]) -> Iterator[tuple[int, int, int]]:
    """Axis 0 fastest; a grid may be too large to list."""
    for z in range(grid[2]):
        for y in range(grid[1]):
            for x in range(grid[0]):
                yield x, y, z


def bind(graph: TileGraph, args: Mapping[str, Any], memory: GlobalMemory) -> dict[Value, Any]:
    """Checked values of the kernel's arguments."""
    missing = [v.name for v in graph.args if v.name not in args]
    if missing:
        raise LaunchError(f"{graph.name}: arguments missing: {', '.join(missing)}")
    return {v: _bind_one(v, args[v.name], memory) for v in graph.args}


def finish(steps: Steps) -> tuple[Any, ...]:
    """Drives a run to its end; an op that waits here would wait for ever."""
    try:
        next(steps)
    except StopIteration as stop:
        return stop.value
    raise InternalError("an op waits, but no other role runs")


class Interpreter:
    """One role of one program; implements `machine.Machine`.

    values: what the values in scope hold.
    """

    def __init__(
        self,
        memory: GlobalMemory,
        program: tuple[int, int, int],
        grid: tuple[int, int, int],
        values: Mapping[Value, Any],
        on_store: OnStore | None = None,
    ) -> None:
        self.memory = memory
        self.program = program
        self.grid = grid
        self.values = dict(values)
        self.on_store = on_store

    def fork(self) -> Interpreter:
        """Another role of the same program, which sees the values known so far."""
        return Interpreter(self.memory, self.program, self.grid, self.values, self.on_store)

    def stored(self, op: Op, array: Array, window: tuple[slice, ...]) -> None:
        if self.on_store is not None:
            self.on_store(op, array, window)

    def run_region(self, region: Region, args: Sequence[Any]) -> Steps:
        values = self.values
        values.update(zip(region.args, args, strict=False))
        for op in region.ops:
            operands = [values[v] for v in op.operands]
            if op.is_terminator:
                return tuple(operands)
            try:
                results: Any = self._start(op, operands)
                if isgenerator(results):
                    results = yield from cast("Steps", results)
                self._finish(op, results)
            except TileError as error:
                raise error.at(op.loc)  # noqa: B904 - the same error, located
            except Exception as error:
                raise InternalError(f"{op.opcode}: {error}", op.loc) from error
        return ()

    def _start(self, op: Op, operands: list[Any]) -> Any:
        match op:
            case For():
                return self._for(op, operands)
            case If():
                return self.run_region(op.then if operands[0] else op.orelse, ())
            case While():
                return self._while(op, operands)
            case _:
                return op.execute(self, *operands)

    def _finish(self, op: Op, results: Any) -> None:
        many: tuple[Any, ...] = ()
        if isinstance(results, tuple):
            many = cast("tuple[Any, ...]", results)
        elif op.results:
            many = (results,)
        if len(many) != len(op.results):
            raise InternalError(f"{op.opcode} gave {len(many)} results, not {len(op.results)}")
        for value, result in zip(op.results, many, strict=True):
            self.values[value] = _typed(op, value, result)

    def _for(self, op: For, operands: list[Any]) -> Steps:
        lower, upper, step, *rest = operands
        if step == 0:
            raise TileError("for: the step is 0")
        carried = tuple(rest[: len(op.init)])
        for index in range(int(lower), int(upper), int(step)):
            iv = np.asarray(index, dtype=lower.dtype)
            carried = yield from self.run_region(op.body, (iv, *carried))
        return carried

    def _while(self, op: While, operands: list[Any]) -> Steps:
        carried = tuple(operands)
        while True:
            proceed, *rest = yield from self.run_region(op.before, carried)
            carried = tuple(rest)
            if not proceed:
                return carried
            carried = yield from self.run_region(op.body, carried)


def _typed(op: Op, value: Value, result: Any) -> Any:
    """The result as an array, checked against the value's type."""
    type_ = value.type
    if not isinstance(type_, ScalarType | TileType):
        return result
    array = np.asarray(result)
    shape = type_.shape if isinstance(type_, TileType) else ()
    if _is_vectorized(op):
        shape = array.shape
    if array.shape != shape or array.dtype != type_.dtype.numpy:
        got = f"{list(array.shape)} {array.dtype}"
        raise InternalError(f"{op.opcode} gave {got} for a value of type {type_}")
    return array


def _is_vectorized(op: Op) -> bool:
    return op.parent is not None and op.parent.parent is not None and op.parent.parent.vectorized


class HasStorage(Protocol):
    """A pointer argument: memory as a flat array, and the element that the pointer points to."""

    @property
    def flat(self) -> Array: ...

    @property
    def offset(self) -> int: ...


def _bind_one(value: Value, given: Any, memory: GlobalMemory) -> Any:
    type_ = value.type
    match type_:
        case TensorType():
            array = _array(value, given, type_.dtype)
            if array.ndim != type_.rank:
                raise LaunchError(f"{value.name}: expected rank {type_.rank}, got {array.ndim}")
            return array
        case ScalarType(dtype=dtype) if dtype.element is not None:
            if isinstance(given, int):
                return np.asarray(given, dtype=np.int64)
            offset = 0
            if not isinstance(given, np.ndarray) and hasattr(given, "flat"):
                storage: HasStorage = given
                given, offset = storage.flat, storage.offset
            array = _array(value, given, dtype.element)
            return np.asarray(memory.add(array, value.name, offset=offset), dtype=np.int64)
        case ScalarType():
            array = np.asarray(given)
            is_float = type_.dtype.is_float
            return rounded(array, type_.dtype) if is_float else array.astype(type_.dtype.numpy)
        case _:
            raise LaunchError(f"{value.name}: a kernel takes no argument of type {type_}")


def _array(value: Value, given: Any, dtype: DType) -> Array:
    if not isinstance(given, np.ndarray):
        raise LaunchError(f"{value.name}: expected an array, got {type(given).__name__}")
    array = cast("Array", given)
    if array.dtype != dtype.numpy:
        raise LaunchError(f"{value.name}: expected {dtype.numpy}, got {array.dtype}")
    return array
