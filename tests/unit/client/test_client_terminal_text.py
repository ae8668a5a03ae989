"""Terminal output: no character of a sandbox controls a screen, hides, or reorders what is printed."""

import ast
import io
import json
import sys
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

import sandherd
from sandherd.cli import exec_session
from sandherd.cli.render import console
from sandherd.cli.stderr import print_error
from sandherd.client import terminal_text
from sandherd.client.terminal_text import visible, visible_json, visible_line, visible_output
from sandherd.contracts.requests import ExecOutput

SINK = Path(terminal_text.__file__)
LIBRARY = Path(sandherd.__file__).parent
PRINTING = ("client", "cli", "admin", "stack", "settings", "service")
"""Packages whose code runs in the process of a command."""
ABUSED = [
    "\u3164",
    "\u115f",
    "\u2800",
    "\ufe00",
    "\U000e0100",
    "\u034f",
    "\u200b",
    "\ufeff",
    "\U0001d159",
    "\U00016fe4",
]
"""Fillers, selectors and joiners: without a shape, and of other categories or often forgotten."""


def forbidden() -> Iterator[str]:
    """Every control, format character, line separator and half of a pair that Unicode has."""
    for letter in map(chr, range(sys.maxunicode + 1)):
        if unicodedata.category(letter) in {"Cc", "Cf", "Cs", "Zl", "Zp"} and letter not in "\n\t\r":
            yield letter


def test_invisible_character_is_shown_by_its_number() -> None:
    """All of Unicode is tested; in text, in output of terminals, and in JSON."""
    for letter in [*forbidden(), *ABUSED]:
        for shown in (visible(f"a{letter}b"), visible_output(f"a{letter}b", colours=True)):
            assert letter not in shown, hex(ord(letter))
            assert len(shown) > 2, f"U+{ord(letter):04X} has vanished"
        document = json.dumps({"a": f"x{letter}y"}, ensure_ascii=False)
        assert letter not in visible_json(document), hex(ord(letter))


@given(st.text(st.characters(codec=None)))
def test_json_is_the_same_document(text: str) -> None:
    """A program reads the original text, halves of surrogate pairs included."""
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
        ("ก" + "\u0e47" * 6, "ก" + "\u0e47" * 4 + "<U+0E47>" * 2),
        ("א" + "\u05b0" * 3 + "\u0651" * 3, "א" + "\u05b0" * 3 + "\u0651" + "<U+0651>" * 2),
        ("ที่นี่ हिन्दी שָׁלוֹם", "ที่นี่ हिन्दी שָׁלוֹם"),
        ("中文 Ünï", "中文 Ünï"),
    ],
)
def test_neutralised_text_stays_visible(text: str, shown: str) -> None:
    """A reader sees that something was there, and what; ordinary text of all languages is unchanged."""
    assert visible(text) == shown


@pytest.mark.parametrize(
    ("codes", "stored"),
    [
        ("8", ""), ("1;08;31", "1;31"), ("30;40", ""), ("38;5;0;48;5;0", ""), ("38;2;0;0;0;48;2;0;0;0", ""),
        ("38;2;8;8;8;1", "1"), ("38", ""), ("48;5", ""), ("107;97", ""), ("37", ""), ("58;5;1;4", "4"), ("28;8", "28"),
        ("1;31", "1;31"), ("92", "92"), ("", "0"), ("7", "7"), ("999", ""),
    ],
)  # fmt: skip
def test_colours_of_a_sandbox_hide_nothing(codes: str, stored: str) -> None:
    """Concealed text, backgrounds, black, white and colours of a palette are left out: others stay where wanted."""
    end = "" if stored in {"", "0"} else "\x1b[0m"
    shown = visible_output(f"\x1b[{codes}mtext", colours=True)
    assert shown == (f"\x1b[{stored}mtext{end}" if stored else "text")
    assert visible_output(f"\x1b[{codes}mtext", colours=False) == "text"


def test_colour_ends_with_the_output() -> None:
    """The next row of `run` and the prompt after the command are not coloured."""
    assert visible_output("\x1b[31mred", colours=True) == "\x1b[31mred\x1b[0m"
    assert visible_output("\x1b[31mred\x1b[0m plain", colours=True) == "\x1b[31mred\x1b[0m plain"
    assert visible_output("\x1b[31mred\x1b[0m\x1b[40m", colours=True) == "\x1b[31mred\x1b[0m"


def test_error_is_one_line_without_controls(capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever a reason has in it."""
    print_error("it ended: \x1b[2J\u202e\u2028\x9b\nsecond line")
    shown = capsys.readouterr().err
    assert shown == "sandherd: it ended: ␛[2J<U+202E><U+2028><U+009B> second line\n"


def test_markup_and_width_of_a_table_are_plain(capsys: pytest.CaptureFixture[str]) -> None:
    """`[red]` and links are text; a replacement uses its own width."""
    rows = [["[red]x[/red]", "[link=http://a]b[/link]", "end"], ["\u202e\u202e", "\x1b]8;;http://a\x07", "end"]]
    console.print_table(("ONE", "TWO", "THREE"), rows)
    lines = capsys.readouterr().out.splitlines()
    assert "[red]x[/red]" in lines[1]
    assert "[link=http://a]b[/link]" in lines[1]
    places = {cell_len(line[: line.index("end")]) for line in lines[1:]}
    assert len(places) == 1


def test_output_of_a_command_is_neutralised_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    """`exec` writes exact bytes to a pipe, and to a terminal neutralised ones, split anywhere."""
    hostile = "a\x1b[2J\u202e\xe9\x9b1m".encode()
    for terminal in (False, True):
        monkeypatch.setattr(sys.stdout, "isatty", lambda found=terminal: found, raising=False)
        writer = exec_session._Writer()
        for byte in hostile:
            writer.write(ExecOutput(stream="stdout", data=bytes([byte])))
        shown = capsysbinary.readouterr().out
        assert shown == ("a␛[2J<U+202E>é<U+009B>1m".encode() if terminal else hostile)


def test_prompt_is_neutralised(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is in the name of what is prompted for, on the terminal from which it is typed."""
    requested: list[str] = []

    def type_at(prompt: str) -> str:
        requested.append(prompt)
        return "typed"

    monkeypatch.setattr("getpass.getpass", type_at)
    assert terminal_text.read_hidden("Value of \x1b[2J\u202e\nx") == "typed"
    assert requested == ["Value of ␛[2J<U+202E> x: "]


def test_uncaught_error_is_neutralised(monkeypatch: pytest.MonkeyPatch) -> None:
    """A traceback is shown, its message without controls and without values of variables."""
    secret = "hunter22-of-the-traceback"
    out = io.StringIO()
    monkeypatch.setattr(sys, "stderr", out)

    def fail(value: str) -> None:
        raise RuntimeError(f"{len(value)} \x1b[2J\u202e")

    with pytest.raises(RuntimeError) as raised:
        fail(secret)
    terminal_text.write_traceback(raised.type, raised.value, raised.tb)
    assert "␛[2J<U+202E>" in out.getvalue()
    assert "Traceback" in out.getvalue()
    assert secret not in out.getvalue()


_PRINTS = {"print", "pprint", "echo", "secho", "confirm", "prompt", "input", "Live"}
_STREAMS = {"stdout", "stderr", "__stdout__", "__stderr__"}
_QUESTIONS = {"isatty", "fileno"}
"""What may be called on a standard stream: it writes nothing."""
_DESCRIPTORS = {1, 2}


def scanned() -> list[Path]:
    """Every module of the packages that print, except the sink."""
    found = [path for package in PRINTING for path in sorted((LIBRARY / package).rglob("*.py"))]
    return [path for path in found if path != SINK]


def faults(source: str) -> list[int]:
    """Lines in which something is printed, or a standard stream is handed out, by other means than the sink's."""
    tree = ast.parse(source)
    requested = {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr in _QUESTIONS
    }
    return sorted(
        {getattr(node, "lineno", 0) for node in ast.walk(tree) if id(node) not in requested and _is_fault(node)}
    )


def _is_fault(node: ast.AST) -> bool:
    match node:
        case ast.Name(id=name):  # also without a call: a reference can be passed to others
            return name in _PRINTS | _STREAMS
        case ast.Attribute(value=ast.Name(id="sys"), attr=name):
            return name in _STREAMS
        case ast.Attribute(value=ast.Name(id="typer" | "click" | "getpass" | "pprint"), attr=name):
            return name in {*_PRINTS, "getpass"}
        case ast.ImportFrom(names=names):
            return any(one.name in {*_PRINTS, *_STREAMS, "getpass"} for one in names)
        case ast.Call(func=ast.Name(id="open") | ast.Attribute(attr="write" | "fdopen"), args=[first, *_]):
            return isinstance(first, ast.Constant) and first.value in _DESCRIPTORS
    return False


def test_output_passes_the_sink_only() -> None:
    """No module that runs in a command prints, writes to a standard stream, or hands one out, except the sink."""
    paths = scanned()
    assert {LIBRARY / "cli" / "app.py", LIBRARY / "cli" / "render" / "console.py"} <= set(paths)
    assert {path.relative_to(LIBRARY).parts[0] for path in paths} == set(PRINTING)
    found = [f"{path.relative_to(LIBRARY)}:{line}" for path in paths for line in faults(path.read_text())]
    assert not found


@pytest.mark.parametrize(
    "planted",
    [
        "print(1)", "show = print", "typer.echo(1)", "typer.confirm('x')", "from click import secho", "Live(table)",
        "sys.stdout.write('x')", "sys.stderr.buffer.write(b'x')", "print('x', file=sys.stderr)", "out = sys.stdout",
        "sys.__stdout__.writelines([])", "from sys import stdout", "os.write(1, b'x')", "open(2, 'w')",
        "click.prompt('x')", "pprint.pprint(1)", "getpass.getpass('x')", "from getpass import getpass",
    ],
)  # fmt: skip
def test_other_output_is_found(planted: str) -> None:
    """Planted below harmless code, each is found in its line."""
    harmless = "import sys\nwidth = None if sys.stdout.isatty() else 300\n"
    assert faults(harmless) == []
    assert faults(f"{harmless}def show() -> None:\n    {planted}\n") == [4]


def test_no_library_writes_to_the_terminal() -> None:
    """No module of a command imports rich, whose consoles write to the terminal themselves."""
    assert not [path for path in scanned() if "import rich" in (text := path.read_text()) or "from rich" in text]


def test_visible_line_is_one_line() -> None:
    """Each line end of Unicode is replaced."""
    assert visible_line("a\u2028b\x85c\nd\ve\u2029f") == "a<U+2028>b<U+0085>c d␋e<U+2029>f"
