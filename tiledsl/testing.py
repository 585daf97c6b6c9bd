"""Timing and comparing, under the names that Triton's users know."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from typing import cast

from tiledsl.runtime.interop import assert_close_arrays
from tiledsl.runtime.timing import do_bench

__all__ = ["Benchmark", "Mark", "assert_close", "do_bench", "perf_report"]


def assert_close(x: Any, y: Any, atol: float | None = None, rtol: float | None = None) -> None:
    """Raises AssertionError unless two tensors (or what becomes one) are close.

    atol, rtol: absolute 1e-2 and relative 0 unless given.
    """
    assert_close_arrays(x, y, 1e-2 if atol is None else atol, 0.0 if rtol is None else rtol)


@dataclass(frozen=True)
class Benchmark:
    """A table of measurements: a row for each of `x_vals`, a column for each of `line_vals`.

    x_names: parameters that a row sets; one value serves all of them.  line_arg: the parameter
    that a column sets.  args: values of the other parameters.  plot_name: the title.  xlabel to
    styles: accepted, for plots.
    """

    x_names: Sequence[str]
    x_vals: Sequence[Any]
    line_arg: str
    line_vals: Sequence[Any]
    line_names: Sequence[str]
    plot_name: str
    args: Mapping[str, Any]
    xlabel: str = ""
    ylabel: str = ""
    x_log: bool = False
    y_log: bool = False
    styles: Sequence[tuple[str, str]] | None = None

    def rows(self, measure: Callable[..., Any], more: Mapping[str, Any]) -> list[list[str]]:
        """The head of the table, then its rows; of several numbers that a call gives, the first."""
        unit = f" ({self.ylabel})" if self.ylabel else ""
        table = [[*self.x_names, *(f"{name}{unit}" for name in self.line_names)]]
        for x in self.x_vals:
            values: list[Any] = [*x] if isinstance(x, list | tuple) else [x] * len(self.x_names)
            if len(values) != len(self.x_names):
                raise ValueError(f"expected {len(self.x_names)} values for {self.x_names}, got {x}")
            given = {**dict(zip(self.x_names, values, strict=True)), **self.args, **more}
            found = [measure(**given, **{self.line_arg: y}) for y in self.line_vals]
            table.append([*map(str, values), *map(_number, found)])
        return table


def _number(measured: Any) -> str:
    value: Any = cast("Any", measured)[0] if isinstance(measured, list | tuple) else measured
    return f"{float(value):.6f}"


@dataclass(frozen=True)
class Mark:
    """A function with the tables that `run` fills by calling it."""

    fn: Callable[..., Any]
    benchmarks: tuple[Benchmark, ...]

    def run(
        self,
        show_plots: bool = False,
        print_data: bool = False,
        save_path: str | Path = "",
        return_df: bool = False,
        **kwargs: Any,
    ) -> list[list[list[str]]]:
        """Measures; gives the tables as lists of rows, each table beginning with its head.

        print_data: prints them.  save_path: a folder for them, as `<plot_name>.csv`.  show_plots,
        return_df: accepted; there are no plots and no data frames.  kwargs: more arguments.
        """
        del show_plots, return_df
        tables = [each.rows(self.fn, kwargs) for each in self.benchmarks]
        for each, rows in zip(self.benchmarks, tables, strict=True):
            if print_data:
                widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
                print(f"{each.plot_name}:")
                for row in rows:
                    cells = zip(row, widths, strict=True)
                    print("  ".join(text.rjust(width) for text, width in cells))
            if save_path:
                Path(save_path).mkdir(parents=True, exist_ok=True)
                text = "".join(",".join(row) + "\n" for row in rows)
                (Path(save_path) / f"{each.plot_name}.csv").write_text(text)
        return tables


def perf_report(
    benchmarks: Benchmark | Sequence[Benchmark],
) -> Callable[[Callable[..., Any]], Mark]:
    """Decorates a function with the tables that `run` fills by calling it."""
    several = (benchmarks,) if isinstance(benchmarks, Benchmark) else tuple(benchmarks)
    return lambda fn: Mark(fn, several)
