"""Pages, headings, commands, options and settings that the documents name exist."""

import ast
import json
import re
import shlex
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import typer.main

from sandherd.cli.app import build
from sandherd.cli.trailing_command import TrailingCommand
from sandherd.contracts.streams import STREAMS
from sandherd.settings import Settings

ROOT = Path(__file__).parents[3]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
INDEX = ROOT / "docs" / "README.md"
COMMANDS: Any = typer.main.get_command(build())
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
COMMAND_IN_TEXT = re.compile(r"`(sandherd [^`\n]+)`")
LINK = re.compile(r"\]\(([^)\s]+)\)")


def links(page: Path) -> Iterator[tuple[Path, str]]:
    """Where a page leads to within the repository: the file, and the heading in it."""
    for target in LINK.findall(FENCED.sub("", page.read_text(encoding="utf-8"))):
        if "://" not in target:
            path, _, heading = target.partition("#")
            yield (page.parent / path).resolve() if path else page, heading


def headings(page: Path) -> set[str]:
    """The anchors that GitHub and other sites create for headings."""
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_resolves(page: Path) -> None:
    """The file exists, and the heading is in it."""
    lost = [
        f"{path.name}#{heading}"
        for path, heading in links(page)
        if not path.exists() or (heading and heading not in headings(path))
    ]
    assert lost == []


def test_index_links_to_every_page() -> None:
    """All pages are reachable from the index."""
    reached = {path for path, _ in links(INDEX)}
    assert set((ROOT / "docs").glob("*.md")) - reached - {INDEX} == set()


def shown(page: Path) -> Iterator[str]:
    """Our command, as a page shows it: on lines of its own, and within sentences."""
    text = page.read_text(encoding="utf-8")
    yield from COMMAND_IN_TEXT.findall(FENCED.sub("", text))
    for block in re.findall(r"^```(?:sh|console)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        yield from re.findall(r"^(?:\$ )?(?:[A-Z_]+=\S+ )*(sandherd .+)", block, re.MULTILINE)


def texts(source: Path) -> Iterator[str]:
    """The strings of a Python file; each value that is filled into one is a `…`."""
    for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def words_of(line: str) -> Iterator[str]:
    """The words of a command in a document, without the syntax of the shell."""
    read = shlex.shlex(line, posix=True, punctuation_chars=True)
    read.whitespace_split = True
    with suppress(ValueError):  # a quotation goes on in the next line, or the line does
        for word in read:
            if set(word) <= set("();<>|&"):
                return
            yield word


def unknown(line: str) -> str | None:
    """The word of it that our command does not know."""
    command, words = COMMANDS, list(words_of(line))[1:]
    while words and (inner := getattr(command, "commands", {}).get(words[0])):
        command, words = inner, words[1:]
    if words and getattr(command, "commands", None):
        return words[0] if words[0][0] not in "-<[…" else None
    known = {name for option in command.params for name in (*option.opts, *option.secondary_opts)} | {"--help"}
    if isinstance(command, TrailingCommand):
        words = command.split(words)[0]
    ours = words[: words.index("--")] if "--" in words else words
    options = [word.partition("=")[0] for word in ours if word.startswith("-") and word != "-"]
    return next((option for option in options if not _letters(option.rstrip("…")) <= known), None)


def surplus(line: str) -> list[str]:
    """Its values that are neither an option's nor an argument of the command; words in brackets describe a syntax."""
    command, words = COMMANDS, [word for word in words_of(line) if word[0] not in "[<" and word[-1] != "]"][1:]
    while words and (inner := getattr(command, "commands", {}).get(words[0])):
        command, words = inner, words[1:]
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    if hasattr(command, "commands") or isinstance(command, TrailingCommand) or any(one.nargs < 0 for one in arguments):
        return []
    flags = {name for one in command.params if getattr(one, "is_flag", False) for name in one.opts} | {"--help"}
    options = {name for one in command.params for name in (*one.opts, *one.secondary_opts)}
    before = ["", *words]
    values = [
        word
        for word, last in zip(words, before, strict=False)
        if (word == "-" or word[0] != "-") and (last not in options or last in flags)
    ]
    return values[sum(one.nargs for one in arguments) :]


def _letters(option: str) -> set[str]:
    """An option, or the several of one letter that are written as one: `-it`."""
    several = option[0] == "-" and option[1:2].isalpha() and len(option) > 2
    return {f"-{letter}" for letter in option[1:]} if several else {option}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_documented_command_exists(page: Path) -> None:
    """Its options exist too, and it has no more arguments than the command takes."""
    assert {line: unknown(line) for line in shown(page) if unknown(line)} == {}
    assert {line: surplus(line) for line in shown(page) if surplus(line)} == {}


def test_every_command_in_a_message_exists() -> None:
    """Errors, remedies and help name commands that can be typed, with their options; what varies stands for a value."""
    sources = [path for folder in ("libs", "services") for path in (ROOT / folder).rglob("*.py")]
    lines = {line: path.name for path in sources for text in texts(path) for line in COMMAND_IN_TEXT.findall(text)}
    assert len(lines) > 100
    assert {line: name for line, name in lines.items() if "--…" not in line and unknown(line)} == {}


def leaves(command: Any, *path: str) -> Iterator[tuple[str, Any]]:
    """Every command that has no further ones, with its name."""
    for name, inner in getattr(command, "commands", {}).items():
        yield from leaves(inner, *path, name) if hasattr(inner, "commands") else [(" ".join([*path, name]), inner)]


def test_page_of_commands_has_all_that_help_shows() -> None:
    """The page has the text of each command, and the choices, limits and default of each option, also of completion."""
    page = (ROOT / "docs/commands.md").read_text(encoding="utf-8").replace("\\|", "|")
    sections = {part.partition("\n")[0]: part for part in re.split(r"^## ", page, flags=re.MULTILINE)}
    sections["sandherd"] = page.partition("\n## ")[0]
    context = COMMANDS.context_class(COMMANDS)
    for name, command in [("sandherd", COMMANDS), *leaves(COMMANDS)]:
        for option in command.params:
            if option.param_type_name == "option":
                shown, text = option.get_help_record(context)
                assert " ".join(text.split()) in sections[name], f"{name} {option.opts}"
                assert option.secondary_opts or f"`{shown.split(maxsplit=len(option.opts))[-1]}`" in sections[name]
    assert {"--install-completion", "--show-completion"} <= set(re.findall(r"`(--[a-z-]+)`", sections["sandherd"]))


def test_help_states_what_is_one_document_per_line() -> None:
    """The commands that the page names print events or pieces as JSON lines; `--help` of each says so, too."""
    leaf_commands = dict(leaves(COMMANDS))
    assert "As JSON, one event per line" in " ".join(leaf_commands["run"].help.split())
    for name in ("events", "logs", "transcript", "services logs"):
        assert "As JSON, one" in leaf_commands[name].help


def test_help_of_a_project_is_about_a_project() -> None:
    """It does not name a task, a local repository, or the default repository that the command sets."""
    for command in ("create", "set"):
        helps = {one.name: one.help for one in COMMANDS.commands["projects"].commands[command].params}
        assert "this task" not in helps["permit"]
        assert "local" not in helps["base"]
        assert "project's default repository" not in helps["git_proxy"]


@pytest.mark.parametrize("name", ["README", "security", "backup", "sizing"])
def test_every_variable_of_the_operators_pages_is_a_setting(name: str) -> None:
    """docs/configuration.md lists each of these variables."""
    known, page = ((ROOT / "docs" / f"{one}.md").read_text(encoding="utf-8") for one in ("configuration", name))
    named = set(re.findall(r"`(SANDHERD_[A-Z_]+)(?:=\S*)?`", page))
    assert {one for one in named if f"`{one}`" not in known} == set()


def test_security_page_states_the_life_of_a_credential() -> None:
    """The default is an hour."""
    page = (ROOT / "docs/security.md").read_text(encoding="utf-8")
    assert "valid for an hour (`SANDHERD_WORKER_CREDENTIAL_LIFE`)" in page
    assert Settings.model_fields["worker_credential_life"].default == 3600


def test_broker_limits_equal_those_of_the_pages() -> None:
    """Seven days of events, and 8 GiB of them."""
    (events,) = [stream for stream in STREAMS if stream.name == "EVENTS"]
    assert (events.max_age, events.max_bytes) == (7 * 86_400, 8 * 2**30)
    assert "stores events for seven days" in (ROOT / "docs/backup.md").read_text(encoding="utf-8")
    assert "`EVENTS` has at most 8 GiB" in (ROOT / "docs/sizing.md").read_text(encoding="utf-8")


def test_measured_idle_herd_is_within_the_promise() -> None:
    """Each service below 80 MiB, all of its memory counted, and below 1 % of a core; a client adds less than 15."""
    figures = json.loads((ROOT / "docs/measured.json").read_text(encoding="utf-8"))["figures"]
    services = ("spawner", "event-ingest", "monitor", "message-relay")
    idle = {name: figures[f"idle.{name}"]["value"] for name in services}
    assert {name: value for name, value in idle.items() if value["alone"] >= 80 or value["cpu"] >= 1} == {}
    clients = {name: figures[f"idle.client_{name}"]["value"]["MiB"] for name in ("docker", "kubernetes", "remote")}
    assert {name: more for name, more in clients.items() if more >= 15} == {}  # Daytona's own client is more
    used = figures["idle.spawner_docker"]["value"]
    assert used["alone"] < 80 + 15
    assert used["cpu"] < 1
