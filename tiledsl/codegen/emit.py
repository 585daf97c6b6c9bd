"""The generic walk from graph to text: regions first, then the macro of the op's name.

Knows no op.
"""

from __future__ import annotations

from functools import cache
from typing import Any
from typing import cast

from tiledsl.codegen.cpp import indent
from tiledsl.codegen.emission import Emission
from tiledsl.codegen.emission import Expression
from tiledsl.codegen.emission import Text
from tiledsl.codegen.environment import environment
from tiledsl.codegen.registry import context_of
from tiledsl.codegen.registry import enter_of
from tiledsl.codegen.registry import yield_of
from tiledsl.codegen.watch import delays
from tiledsl.errors import SourceLoc
from tiledsl.errors import TileError
from tiledsl.ir.op import Op
from tiledsl.ir.op import Region
from tiledsl.ir.ops.control import Yield

__all__ = ["Walker"]


class Walker:
    """Renders regions; one per kernel."""

    def __init__(self, emission: Emission) -> None:
        self.emission = emission
        self._line: tuple[str, int] | None = None

    def region(self, region: Region) -> str:
        """The statements of a region, without indentation."""
        out = ""
        for op in region.ops:
            try:
                text = self._op(op)
            except TileError as error:
                raise error.at(op.loc) from None
            if text.startswith("else") and out.endswith("}\n"):
                out = out[:-1] + " "
            out += text
        return out

    def _op(self, op: Op) -> str:
        emission = self.emission
        enter = enter_of(op)
        if enter is not None:
            enter(op, emission)
        head = emission.take_pending()
        comment = self._comment(op.loc) if op.regions and not _is_structural(op) else ""
        bodies = [indent(self.region(r)).rstrip("\n") for r in op.regions]
        context = self._context(op, bodies)
        head += emission.take_pending()
        if context is None:
            return _lines(head)
        text = render_macro(op.opcode, context)
        if isinstance(context, Expression):
            text = self._bind(op, context, text.strip())
            head += emission.take_pending()
        body = _lines([*head, text])
        if not body:
            return ""
        body = delays(op, emission) + body
        return (comment if op.regions else self._comment(op.loc)) + body

    def _context(self, op: Op, bodies: list[str]) -> object | None:
        if isinstance(op, Yield):
            parent = op.parent.parent if op.parent is not None else None
            build = yield_of(parent) if parent is not None else None
            return build(op, self.emission) if build is not None else None
        return context_of(op)(op, self.emission, *bodies)

    def _bind(self, op: Op, context: Expression, text: str) -> str:
        """Gives the value of an expression to the op's result.

        In place of a variable when it is simple.
        """
        code = context.wrap.format(text) if context.wrap else text
        atomic = context.atomic or bool(context.wrap)
        value = op.result
        if not self.emission.users(value):
            return ""
        if self.emission.may_inline(value, code, cheap=context.cheap):
            stable = all(self.emission.is_stable(v) for v in op.operands)
            is_product = context.is_product and not context.wrap
            self.emission.bind_text(value, Text(code, atomic, stable, is_product))
            return ""
        return f"{self.emission.assignment(value, 't')} = {code};"

    def _comment(self, loc: SourceLoc | None) -> str:
        """The source line of an op, when it is not the one shown last."""
        if loc is None or (loc.file, loc.line) == self._line:
            return ""
        self._line = (loc.file, loc.line)
        text = loc.text.strip().rstrip("\\").rstrip()  # at the end it would join the next line
        return f"// {loc.short}  {text}\n" if text else f"// {loc.short}\n"


def render_macro(opcode: str, context: object) -> str:
    """The text that the macro of an opcode, or of its variant, makes of a context."""
    family, _, _ = opcode.partition(".")
    variant = getattr(context, "variant", "")
    name = opcode.replace(".", "_") + (f"_{variant}" if variant else "")
    return str(getattr(_macros(family), name)(context))


@cache
def _macros(family: str) -> Any:  # noqa: ANN401 - Jinja's module has the macros as attributes
    return cast("Any", environment().get_template(f"ops/{family}.cu.j2").module)


def _is_structural(op: Op) -> bool:
    """Whether an op shapes the kernel rather than standing for a statement of the user's."""
    return op.opcode.startswith("role.")


def _lines(pieces: list[str]) -> str:
    """Pieces one after the other, without empty lines, ending in a line end."""
    lines = [line for piece in pieces for line in piece.split("\n") if line.strip()]
    return "\n".join(lines) + "\n" if lines else ""
