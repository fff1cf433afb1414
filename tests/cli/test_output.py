"""What is shown is shown, never obeyed."""

from __future__ import annotations

import contextlib
import io
import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from pollwise.cli import output
from pollwise.cli.output import (
    fail,
    moment,
    print_json,
    print_table,
    say,
    visible,
    visible_lines,
    warn,
)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("", ""),
        ("ünï©ødé 日本語 😀", "ünï©ødé 日本語 😀"),
        ("a\u00a0b\u3000c", "a\u00a0b\u3000c"),
        ("\u0646\u200c\u0647 👩\u200d🔬", "\u0646\u200c\u0647 👩\u200d🔬"),
        ("\x1b[31mred\x1b[0m", r"\x1b[31mred\x1b[0m"),
        ("\x9b31m", r"\x9b31m"),
        ("bell\a back\b tab\t null\0 del\x7f", r"bell\x07 back\x08 tab\t null\x00 del\x7f"),
        ("one\ntwo\r\n", r"one\ntwo\r\n"),
        ("\u202eright to left", r"\u202eright to left"),
        ("line\u2028separator", r"line\u2028separator"),
        ("half \ud800 a pair", r"half \ud800 a pair"),
        ("\U000e0001tag", r"\U000e0001tag"),
        ("[red]no markup[/red]", "[red]no markup[/red]"),
    ],
)
def test_what_would_not_show_is_written_out(text: str, shown: str) -> None:
    assert visible(text) == shown


@given(st.text())
def test_nothing_that_moves_a_cursor_is_left(text: str) -> None:
    left = visible(text).replace("\u200c", "").replace("\u200d", "")
    assert not {unicodedata.category(char) for char in left} & {"Cc", "Cf", "Cs", "Zl", "Zp"}
    left.encode()


@given(st.text(st.characters(categories=["L", "N", "P", "S", "M"])))
def test_what_shows_is_left_alone(text: str) -> None:
    assert visible(text) == text


def test_line_breaks_of_a_message_stay() -> None:
    assert visible_lines("2 settings are wrong:\n- \x1b[31m\r\n- b") == (
        "2 settings are wrong:\n- \\x1b[31m\\r\n- b"
    )


@given(st.text())
def test_json_is_one_line_of_ascii(text: str) -> None:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        print_json({"text": text})
    line = out.getvalue()
    assert line.isascii()
    assert line[:-1].isprintable()
    assert json.loads(line) == {"text": text}


@pytest.mark.parametrize(("tell", "word"), [(fail, "error"), (warn, "warning")])
def test_messages_go_to_standard_error_on_one_line(
    tell: object, word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert callable(tell)
    message = "[bold]x[/bold] \x1b[2J" + " word" * 60
    tell(message)
    out, err = capsys.readouterr()
    assert out == ""
    assert err == f"{word}: {visible(message)}\n"


def test_a_long_line_is_not_broken_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    say("[i]", ("x" * 300, "bold"))
    assert capsys.readouterr().out == f"[i]{'x' * 300}\n"


def table(*rows: tuple[object, ...], width: int | None = None) -> list[str]:
    """The lines of a table in a terminal of `width` columns, or in a pipe."""
    with contextlib.redirect_stdout(io.StringIO()) as pipe:
        terminal = Console(
            file=pipe, width=width, force_terminal=width is not None, color_system=None
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(output, "out", terminal)
            print_table(("id", "name", "text"), rows, empty="no rows", narrow=("id",), cut="text")
    return [line.rstrip() for line in pipe.getvalue().splitlines()]


def test_without_rows_a_table_says_so() -> None:
    assert table() == ["no rows"]


def test_cells_are_text_and_none_is_nothing() -> None:
    assert table((1, None, "[red]\x1b[31m[/]")) == ["id  name  text", r"1         [red]\x1b[31m[/]"]


def test_in_a_terminal_a_row_keeps_to_its_width() -> None:
    lines = table((123456789, "a-name", "word " * 40), (2, "b", "日本語" * 30), width=40)
    assert len(lines) == 3
    assert all(len(line) <= 40 for line in lines)
    assert lines[1].startswith("123456789  a-name  word word")
    assert lines[1].endswith("…")
    assert lines[2].endswith("…")


def test_in_a_pipe_a_row_is_one_whole_line() -> None:
    (_, row) = table((1, "n" * 200, "t" * 400))
    assert row == f"1   {'n' * 200}  {'t' * 400}"


def test_moments_are_shown_in_utc() -> None:
    assert moment(0) == "1970-01-01 00:00:00Z"
    assert moment(1_767_225_600.9) == "2026-01-01 00:00:00Z"
