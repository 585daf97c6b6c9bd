"""tiledsl.errors: locations, carets, call chains, tabs, hints, pickling."""

from __future__ import annotations

import linecache
import pickle
from pathlib import Path

import pytest

from tiledsl import errors
from tiledsl.errors import Note
from tiledsl.errors import SourceLoc
from tiledsl.errors import TileError
from tiledsl.errors import TypeMismatch

SOURCE = "x = 1\nacc = tl.dot(a, b)\n\ty = dot(a)\n\n"


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "gemm.py"
    path.write_text(SOURCE)
    linecache.checkcache(str(path))
    return str(path)


def classes() -> list[type[TileError]]:
    found = (getattr(errors, name) for name in errors.__all__)
    return [c for c in found if isinstance(c, type) and issubclass(c, TileError)]


def test_columns_count_from_one_when_shown() -> None:
    assert str(SourceLoc("gemm.py", 31, 14)) == "gemm.py:31:15"


@pytest.mark.parametrize("path", ["a/b/gemm.py", "C:\\b\\gemm.py", "gemm.py"])
def test_short_location_drops_the_folder(path: str) -> None:
    assert SourceLoc(path, 31).short == "gemm.py:31"


def test_message_without_a_location() -> None:
    assert TileError("no such thing").render() == "error: no such thing"


def test_carets_mark_the_span(file: str) -> None:
    error = TypeMismatch("dot(): a has K=64 but b has K=32", SourceLoc(file, 2, 6, 18))
    assert error.render().splitlines() == [
        f"{file}:2:7: error: dot(): a has K=64 but b has K=32",
        "    acc = tl.dot(a, b)",
        "          ^^^^^^^^^^^^",
    ]


@pytest.mark.parametrize("end", [None, 4, 2])
def test_a_span_without_an_end_has_one_caret(file: str, end: int | None) -> None:
    assert TileError("m", SourceLoc(file, 1, 4, end)).render().splitlines()[2] == " " * 8 + "^"


def test_carets_stop_at_the_end_of_the_line(file: str) -> None:
    caret_line = TileError("m", SourceLoc(file, 1, 0, 500)).render().splitlines()[2]
    assert caret_line == "    " + "^" * len("x = 1")


def test_tabs_are_expanded_before_carets_are_placed(file: str) -> None:
    text, carets = TileError("m", SourceLoc(file, 3, 5, 11)).render().splitlines()[1:]
    assert "\t" not in text
    assert text[carets.index("^") : carets.rindex("^") + 1] == "dot(a)"


@pytest.mark.parametrize("line", [4, 99])
def test_a_blank_or_missing_line_shows_no_carets(file: str, line: int) -> None:
    assert TileError("m", SourceLoc(file, line)).render() == f"{file}:{line}:1: error: m"


def test_unreadable_file_shows_the_message_alone() -> None:
    assert TileError("m", SourceLoc("<kernel>", 1)).render() == "<kernel>:1:1: error: m"


def test_call_chain_is_listed_from_the_inside_out(file: str) -> None:
    outer = SourceLoc(file, 1, function="kernel")
    middle = SourceLoc(file, 2, function="helper").called_from(outer)
    inner = SourceLoc(file, 3, 1).called_from(middle)
    heads = [t for t in TileError("m", inner).render().splitlines() if t.startswith(file)]
    assert heads == [
        f"{file}:3:2: error: m",
        f"{file}:2:1: note: called from here",
        f"{file}:1:1: note: called from here",
    ]


def test_notes_have_their_own_carets_and_the_hint_comes_last(file: str) -> None:
    error = TypeMismatch("bad", SourceLoc(file, 2), hint="cast b first")
    assert error.note("b comes from here", SourceLoc(file, 1, 0, 1)).note("plain") is error
    assert error.render().splitlines()[3:] == [
        f"{file}:1:1: note: b comes from here",
        "    x = 1",
        "    ^",
        "note: plain",
        "hint: cast b first",
    ]


def test_str_is_the_rendering(file: str) -> None:
    error = TileError("m", SourceLoc(file, 2), hint="h")
    assert str(error) == error.render()


def test_a_location_is_attached_once() -> None:
    first, second = SourceLoc("a.py", 1), SourceLoc("b.py", 2)
    error = TileError("m").at(None).at(first).at(second)
    assert error.loc == first


def test_notes_are_not_shared_between_errors() -> None:
    TileError("one").note("note")
    assert TileError("two").notes == []


@pytest.mark.parametrize("cls", classes())
def test_every_class_survives_pickling(cls: type[TileError]) -> None:
    loc = SourceLoc("gemm.py", 3, 1, 4, caller=SourceLoc("main.py", 9))
    error = cls("message", loc, "hint").note("note", loc)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is cls
    assert (copy.message, copy.loc, copy.hint) == ("message", loc, "hint")
    assert copy.notes == [Note("note", loc)]
    assert copy.render() == error.render()


@pytest.mark.parametrize("cls", classes())
def test_every_class_is_documented_in_the_tree(cls: type[TileError]) -> None:
    assert cls.__doc__
    assert cls.__name__ in (errors.__doc__ or "")


def test_errors_can_be_raised_chained_and_hashed() -> None:
    """Tools keep raised exceptions in sets, so an exception has to be hashable."""
    with pytest.raises(TileError) as caught:
        raise TypeMismatch("m") from ValueError("cause")
    assert isinstance(caught.value.__cause__, ValueError)
    assert hash(caught.value) == hash(caught.value)
    assert TypeMismatch("m") != TypeMismatch("m")
