"""Terminal output: no character of a sandbox controls a screen, hides, or reorders what is printed."""

import ast
import io
import json
import sys
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

import sandherd.client
from sandherd.client import terminal_text
from sandherd.client.cli import executions, printing
from sandherd.client.cli.leaving import complain
from sandherd.client.terminal_text import visible, visible_json, visible_line, visible_output
from sandherd.contracts.requests import ExecOutput

SINK = Path(terminal_text.__file__)
CLIENT = Path(sandherd.client.__file__).parent
FORBIDDEN = [
    chr(code)
    for code in range(sys.maxunicode + 1)
    if unicodedata.category(chr(code)) in {"Cc", "Cf", "Cs", "Zl", "Zp"} and chr(code) not in "\n\t\r"
]
"""Every control, format character, line separator and half of a pair that Unicode has."""
ABUSED = ["\u3164", "\u115f", "\u2800", "\ufe00", "\U000e0100", "\u034f", "\u200b", "\ufeff"]
"""Fillers, selectors and joiners: without a shape, and of other categories or often forgotten."""


def test_every_character_without_a_shape_is_shown_by_its_number() -> None:
    """All of Unicode, whatever version Python has; in text, in output of terminals, and in JSON."""
    for letter in [*FORBIDDEN, *ABUSED]:
        for shown in (visible(f"a{letter}b"), visible_output(f"a{letter}b", colours=True)):
            assert letter not in shown, hex(ord(letter))
            assert len(shown) > 2, f"U+{ord(letter):04X} has vanished"
        document = json.dumps({"a": f"x{letter}y"}, ensure_ascii=False)
        assert letter not in visible_json(document), hex(ord(letter))


@given(st.text(st.characters(codec=None)))
def test_json_stays_the_same_document(text: str) -> None:
    """What a program reads is what was said, halves of surrogate pairs and all."""
    document = json.dumps([text, {text: 1}], ensure_ascii=False)
    assert json.loads(visible_json(document)) == json.loads(document)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("rm \u202egpj.x", "rm <U+202E>gpj.x"),
        ("\x1b[2Jhi", "␛[2Jhi"),
        ("\x9b31m", "<U+009B>31m"),
        ("a\u2028b", "a<U+2028>b"),
        ("a\rb", "a␍b"),
        ("a\r\nb", "a\nb"),
        ("tag\U000e0041", "tag<U+E0041>"),
        ("\ud800", "<U+D800>"),
        ("✔️ a👍🏽", "✔️ a👍🏽"),
        ("e\u0301\u0301\u0301\u0301\u0301", "e\u0301\u0301\u0301\u0301<U+0301>"),
        ("中文 Ünï", "中文 Ünï"),
    ],
)
def test_what_is_neutralised_stays_visible(text: str, shown: str) -> None:
    """A reader sees that something was there, and what; ordinary text of all languages is left alone."""
    assert visible(text) == shown


def test_colours_of_a_sandbox_hide_nothing() -> None:
    """Concealed text (SGR 8) is shown; other colours are kept where they are wanted."""
    assert visible_output("\x1b[8mhidden\x1b[0m", colours=True) == "hidden\x1b[0m"
    assert visible_output("\x1b[1;08;31mhidden", colours=True) == "hidden"
    assert visible_output("\x1b[38;5;8mgrey", colours=False) == "grey"


def test_an_error_is_one_line_without_controls(capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever a reason has in it."""
    complain("it ended: \x1b[2J\u202e\u2028\x9b\nsecond line")
    shown = capsys.readouterr().err
    assert shown == "sandherd: it ended: ␛[2J<U+202E><U+2028><U+009B> second line\n"


def test_markup_and_width_of_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    """`[red]` and links are text; what stands for a character takes the room that it is given."""
    rows = [["[red]x[/red]", "[link=http://a]b[/link]", "end"], ["\u202e\u202e", "\x1b]8;;http://a\x07", "end"]]
    printing.table(("ONE", "TWO", "THREE"), rows)
    lines = capsys.readouterr().out.splitlines()
    assert "[red]x[/red]" in lines[1]
    assert "[link=http://a]b[/link]" in lines[1]
    places = {cell_len(line[: line.index("end")]) for line in lines[1:]}
    assert len(places) == 1


def test_output_of_a_command_goes_to_a_terminal_neutralised(
    monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    """`exec` writes exact bytes to a pipe, and to a terminal what does not control it, cut anywhere."""
    hostile = "a\x1b[2J\u202e\xe9\x9b1m".encode()
    for terminal in (False, True):
        monkeypatch.setattr(sys.stdout, "isatty", lambda found=terminal: found, raising=False)
        writer = executions._Writer()
        for byte in hostile:
            writer.write(ExecOutput(stream="stdout", data=bytes([byte])))
        shown = capsysbinary.readouterr().out
        assert shown == ("a␛[2J<U+202E>é<U+009B>1m".encode() if terminal else hostile)


def test_an_uncaught_error_is_neutralised(monkeypatch: pytest.MonkeyPatch) -> None:
    """A traceback is shown, its message without controls; it holds no value of a variable."""
    secret = "hunter22-of-the-traceback"
    out = io.StringIO()
    monkeypatch.setattr(sys, "stderr", out)

    def fail(value: str) -> None:
        raise RuntimeError(f"{len(value)} \x1b[2J\u202e")

    with pytest.raises(RuntimeError) as raised:
        fail(secret)
    terminal_text.put_traceback(raised.type, raised.value, raised.tb)
    assert "␛[2J<U+202E>" in out.getvalue()
    assert "Traceback" in out.getvalue()
    assert secret not in out.getvalue()


_PRINTS = {"print", "echo", "secho", "pprint"}
_STREAMS = {"stdout", "stderr", "__stdout__", "__stderr__"}


def _faults(tree: ast.Module) -> list[int]:
    """Lines in which something is printed by other means than the sink's."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in {*_PRINTS, "Live"}:
            found.append(node.lineno)
        if isinstance(node, ast.Attribute) and node.attr in {"echo", "secho", "write", "writelines", "buffer"}:
            of = node.value
            if (isinstance(of, ast.Attribute) and of.attr in _STREAMS) or getattr(of, "id", "") in {"typer", "click"}:
                found.append(node.lineno)
        if isinstance(node, ast.Name) and node.id in _STREAMS:
            found.append(node.lineno)
    return found


def test_nothing_is_printed_but_through_the_sink() -> None:
    """No module of the client prints, writes to a standard stream, or hands one out, except `terminal_text`."""
    faults = {
        f"{path.relative_to(CLIENT)}:{line}"
        for path in CLIENT.rglob("*.py")
        if path != SINK
        for line in _faults(ast.parse(path.read_text()))
    }
    assert not faults


def test_a_rich_console_is_captured_wherever_there_is_one() -> None:
    """What rich draws goes through the sink, too."""
    for path in CLIENT.rglob("*.py"):
        source = path.read_text()
        assert source.count("Console(") == source.count(".capture()"), path


def test_a_line_is_one_line() -> None:
    """Of whatever line ends Unicode has."""
    assert visible_line("a\u2028b\x85c\nd\ve\u2029f") == "a<U+2028>b<U+0085>c d␋e<U+2029>f"
