"""Source locations, the exception tree and caret rendering. Imports nothing of ours.

TileError
|- SyntaxNotSupported   a statement or expression outside the language
|- NameUnresolved       a name that is no local, constexpr, helper or tl function
|- TypeMismatch         dtype, rank or shape of an operand is wrong
|- VerifyError          a graph breaks a rule of its level
|- ScheduleError        an override or a loop that cannot be warp-specialised
|- ResourceError        shared memory or registers exceed the target's limits
|- CodegenError         no CUDA form for an op
|- NvrtcError           NVRTC rejected or serialised the emitted text
|- LaunchError          wrong arguments, device or driver state at launch
|- PipelineStall        a debug build gave up a wait for a barrier
`- InternalError        a bug of the compiler; names the pass, asks for a report
"""

from __future__ import annotations

import linecache
from dataclasses import dataclass
from dataclasses import field
from dataclasses import fields
from dataclasses import replace

__all__ = [
    "CodegenError",
    "InternalError",
    "LaunchError",
    "NameUnresolved",
    "Note",
    "NvrtcError",
    "PipelineStall",
    "ResourceError",
    "ScheduleError",
    "SourceLoc",
    "SyntaxNotSupported",
    "TileError",
    "TypeMismatch",
    "VerifyError",
]


@dataclass(frozen=True, slots=True)
class SourceLoc:
    """A span of a source file. Lines count from 1, columns from 0 (Python's `ast`)."""

    file: str
    line: int
    col: int = 0
    end_col: int | None = None
    function: str = ""
    caller: SourceLoc | None = None

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.col + 1}"

    @property
    def short(self) -> str:
        """`gemm.py:31`, the form used in emitted comments."""
        return f"{self.file.replace(chr(92), '/').rsplit('/', 1)[-1]}:{self.line}"

    @property
    def text(self) -> str:
        """The source line without its line end, or an empty string when it cannot be read."""
        return linecache.getline(self.file, self.line).rstrip("\n")

    def called_from(self, caller: SourceLoc | None) -> SourceLoc:
        return replace(self, caller=caller)


@dataclass(frozen=True, slots=True)
class Note:
    """A secondary message with a place of its own."""

    message: str
    loc: SourceLoc | None = None


@dataclass(eq=False)
class TileError(Exception):
    """Base of all errors.

    `str()` renders `file:line:col: error: message`, carets, notes and hint.
    """

    message: str
    loc: SourceLoc | None = None
    hint: str | None = None
    notes: list[Note] = field(default_factory=list[Note])

    def __post_init__(self) -> None:
        super().__init__(self.message)

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.message, self.loc, self.hint, self.notes))

    def at(self, loc: SourceLoc | None) -> TileError:
        """Attaches a location unless one is already known; returns self."""
        if self.loc is None:
            self.loc = loc
        return self

    def note(self, message: str, loc: SourceLoc | None = None) -> TileError:
        """Adds a note; returns self."""
        self.notes.append(Note(message, loc))
        return self

    def render(self) -> str:
        """The full text of the error, several lines."""
        lines = _render_span("error", self.message, self.loc)
        caller = self.loc.caller if self.loc else None
        while caller is not None:
            lines += _render_span("note", "called from here", caller)
            caller = caller.caller
        for note in self.notes:
            lines += _render_span("note", note.message, note.loc)
        if self.hint:
            lines.append(f"hint: {self.hint}")
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.render()


def _render_span(kind: str, message: str, loc: SourceLoc | None) -> list[str]:
    if loc is None:
        return [f"{kind}: {message}"]
    out = [f"{loc}: {kind}: {message}"]
    text = loc.text
    if text.strip():
        expanded = text.expandtabs(4)
        start = len(text[: loc.col].expandtabs(4))
        end = loc.end_col if loc.end_col is not None and loc.end_col > loc.col else loc.col + 1
        stop = min(len(text[:end].expandtabs(4)), len(expanded))
        out.append(f"    {expanded}")
        out.append("    " + " " * start + "^" * max(1, stop - start))
    return out


class SyntaxNotSupported(TileError):
    """A Python construct that the language does not have."""


class NameUnresolved(TileError):
    """A name that resolves to nothing the kernel may use."""


class TypeMismatch(TileError):
    """Operands whose dtype, rank or shape do not fit the operation."""


class VerifyError(TileError):
    """A graph that breaks a rule of its level."""


class ScheduleError(TileError):
    """A launch option that cannot be honoured, or a loop that cannot be scheduled."""


class ResourceError(TileError):
    """Shared memory or registers beyond what the target has; carries a table per buffer."""


class CodegenError(TileError):
    """An operation with no CUDA form."""


class StaticFailure(TileError):
    """A `static_assert`, `assert` or `raise` that failed while compiling: nothing follows it."""


class NvrtcError(TileError):
    """NVRTC is missing, rejected the text, or reported spills or serialisation."""


class LaunchError(TileError):
    """A launch with wrong arguments, or on a device that cannot run the kernel."""


@dataclass(eq=False)
class PipelineStall(TileError):
    """A launch of a debug build in which a wait lasted too long; its output is undefined.

    role: who waited.  kind: `full` or `empty` slot of a channel, or `named` barrier.  channel: its
    name.  slot: in the ring (of a named barrier its id).  parity: of the phase waited for.
    count: ring steps before the wait.  block: the CTA.
    """

    role: str = ""
    kind: str = ""
    channel: str = ""
    slot: int = 0
    parity: int = 0
    count: int = 0
    block: tuple[int, int, int] = (0, 0, 0)

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), tuple(getattr(self, f.name) for f in fields(self)))


class InternalError(TileError):
    """A bug of the compiler itself."""
