"""Names: what a stranger would search for. The glossary in CONTRIBUTING.md says which words are used."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest

from tests.unit.house.texts import declared, prose, sentences, without_code

ROOT: Final = Path(__file__).parents[3]

CLASSES_IN_ING: Final = {
    "ActedFinding", "Chanting", "Finding", "IdleFinding", "OpenFinding", "ReplayedFinding", "SecretEncoding",
    "Steering", "SubscriptionReading", "TextReading",
    "AgentThinking", "AgentWaiting", "SandboxRunning", "SandboxStopping", "TaskRunning",
}  # fmt: skip
"""Nouns that end in -ing, and events that are named by the state they report; `Chanting` is a rule."""
VAGUE: Final = {
    "asked", "common", "doing", "gone", "handed", "heard", "helpers", "kept", "left", "manager", "managers", "misc",
    "put", "recorded", "said", "settled", "stuff", "there", "told", "util", "utils",
}  # fmt: skip
"""Words that name no subject."""
NOUNS_IN_ING: Final = {"grouping", "operating", "polling", "steering"}
"""Modules and folders of tests that end in -ing, and are nouns or, as `operating`, the name of a page of the docs."""
CONTRACTS: Final = "libs/sandherd/contracts/"
"""Its classes are named by states and results that appear on the wire."""


def _distribution(name: str) -> str:
    return "/".join(name.split("/")[:2]) if name.startswith("services/") else "libs"


def _words(name: str) -> list[str]:
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])", name)]


def _classes(source: Any) -> list[str]:
    return [node.name for node in source.tree.body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]


def test_modules_are_named_by_nouns(product: list[Any]) -> None:
    """No module or package is named by what it does (`handing`) or by a word without a subject (`kept`, `utils`)."""
    parts = {part.removesuffix(".py") for source in product for part in source.name.split("/")[2:]}
    gerunds = {part for part in parts if part.endswith("ing")}
    assert gerunds == {"chanting", "flooding"}  # rules of the monitor: their modules have their names on the wire
    assert {part for part in parts if VAGUE & set(part.split("_"))} == set()


def test_modules_of_tests_are_named_by_nouns(sources: list[Any]) -> None:
    """The same for fixtures, doubles, benchmarks and programs of tests; a test file is named by what it tests."""
    paths = [source.name.removeprefix("tests/") for source in sources if source.name.startswith("tests/")]
    parts = {part.removesuffix(".py") for path in paths for part in path.split("/") if not part.startswith("test_")}
    assert {part for part in parts if part.endswith("ing")} == NOUNS_IN_ING
    assert parts & VAGUE == set()


def test_no_module_name_contains_a_word_to_avoid(sources: list[Any]) -> None:
    """The words of the glossary's column "avoid" are in no name of a module, folder or test file."""
    names = {source.name for source in sources}
    assert {name for name in names if _avoided().search(re.sub(r"[_/.]", " ", name))} == set()


def test_classes_are_named_by_nouns(product: list[Any]) -> None:
    """No public class is named by what it does, or by a word without a subject."""
    named = {(source.name, name) for source in product for name in _classes(source)}
    assert {(file, name) for file, name in named if name.endswith("ing") and name not in CLASSES_IN_ING} == set()
    outside = {(file, name) for file, name in named if not file.startswith(CONTRACTS)}
    assert {(file, name) for file, name in outside if VAGUE & set(_words(name))} == set()


def test_public_class_name_is_used_once_within_a_distribution(product: list[Any]) -> None:
    """A search for a class finds one."""
    places = defaultdict(set)
    for source in product:
        for name in _classes(source):
            places[_distribution(source.name), name].add(source.name)
    assert {key: files for key, files in places.items() if len(files) > 1} == {}


PACKAGES: Final[Mapping[str, str]] = {
    "libs": "libs/",
    "spawner": "services/spawner/",
    "worker": "services/worker/sandherd_worker/",
    "drivers": "services/worker/sandherd_drivers/",
    "message-relay": "services/message-relay/",
    "gateway": "services/gateway/",
    "monitor": "services/monitor/",
    "event-ingest": "services/event-ingest/",
}
NOT_YET: Final[frozenset[str]] = frozenset()
"""Packages whose names and texts are still being cleaned: what is found in them fails no test."""
BANNED: Final = {
    "told", "tell", "tells", "said", "say", "says", "asked", "ask", "asks", "asking", "heard", "hear", "kept", "room",
    "gone", "away", "look", "looked", "looks", "there", "way", "most", "least", "nobody", "whoever", "somebody",
    "lies", "lay", "lays", "mend", "vain", "surely", "given", "comes", "goes", "go", "holding", "hush", "sound",
    "doubt", "lead", "lacking", "furnish", "bring", "brought", "words", "ours", "theirs", "few",
}  # fmt: skip
"""Words that no identifier contains: a noun or a verb names the value or the action instead (limit, request, path)."""
WIRE: Final = {
    "agent_gone": "a field of deliveries", "asked_in": "a field of approval events",
    "most_unacknowledged": "a field of subscriptions", "python_brought": "in the JSON of `sandherd image build`",
    "said_bytes": "a field of monitor.flood_found", "said_junk": "a field of monitor.flood_found",
    "said_messages": "a field of monitor.flood_found", "daytona_look_interval": "a setting",
    "until_said": "the option --until-said",
}  # fmt: skip
"""Identifiers with a banned word that are read from outside, and where."""
PLACES: Final = {
    ("libs/sandherd/archives/writer.py", "tell"): "a method of Python's files",
    ("libs/sandherd/archives/limited_reader.py", "tell"): "a method of Python's files",
    ("libs/sandherd/bus/connection.py", "ask"): "the requests of `Bus`",
    ("libs/sandherd/cli/commands/run.py", "ask"): "the option --ask",
    ("libs/sandherd/cli/parse/agent_options.py", "Ask"): "the option --ask",
    ("libs/sandherd/cli/parse/harness.py", "ask"): "the option --ask",
    ("libs/sandherd/contracts/requests/subscriptions.py", "most"): "a field of the reply",
    ("services/message-relay/message_relay/approval.py", "asked_at"): "stored in the bucket of approvals",
    ("services/message-relay/message_relay/approval.py", "said"): "stored in the bucket of approvals",
}
"""The same for a name that is permitted in one file only."""


def _is_banned(file: str, name: str) -> bool:
    if name in WIRE or (file, name) in PLACES:
        return False
    words = name.strip("_").lower().split("_")
    # A participle before its noun is plain, as in `given_name`.
    return bool(BANNED & {word for word in words[:-1] if word != "given"} | BANNED & {words[-1]})


@pytest.mark.parametrize("package", PACKAGES)
def test_identifiers_contain_no_banned_word(package: str, product: list[Any]) -> None:
    """Functions, parameters, attributes, variables and constants are named by what they are or do."""
    own = [source for source in product if source.name.startswith(PACKAGES[package])]
    found = {
        f"{source.name}:{line}: {name}"
        for source in own
        for name, line in declared(source.tree)
        if _is_banned(source.name, name)
    }
    _expect_none(package, found)


BANNED_IN_TESTS: Final = {
    "told", "tell", "tells", "said", "say", "heard", "hear", "hears", "asked", "kept", "whoever", "somebody", "speaker",
    "teller",
}  # fmt: skip
"""Words for publishing, receiving, requesting and storing that no name in a test has: a test has its own variables."""


def test_identifiers_of_tests_contain_no_banned_word(sources: list[Any]) -> None:
    """Fixtures, doubles and variables of tests are named by the terms of the glossary."""
    found = {
        f"{source.name}:{line}: {name}"
        for source in sources
        if source.name.startswith("tests/")
        for name, line in declared(source.tree)
        if BANNED_IN_TESTS & set(name.strip("_").lower().split("_"))
    }
    assert found == set()


def test_exceptions_are_used(product: list[Any]) -> None:
    """Each exception is a name that exists."""
    names = {(source.name, name) for source in product for name, _ in declared(source.tree)}
    assert WIRE.keys() <= {name for _, name in names}
    assert PLACES.keys() <= names


def _expect_none(package: str, found: set[str]) -> None:
    if found and package in NOT_YET:
        pytest.xfail(f"{package}: {len(found)}")
    assert found == set()


ORDINARY: Final = {
    "answer": "an approval is answered", "ask": "agents ask a user, and a policy's verdict is `ask`",
    "bound": "a socket is bound, and a folder is mounted by a bind", "cell": "of a table, and the cell rate algorithm",
    "go": "the language", "job": "of make, Kubernetes and Prometheus",
    "keep": "a process keeps running", "leave": "leave out; leave something as it is",
    "listen": "a server listens on a port", "look": "look up", "most": "at most", "order": "in the order of the stream",
    "past": "the requests for past tasks and sandboxes", "pause": "sandboxes are paused",
    "right": "correct, and right after", "round": "round robin", "say": "a text says something",
    "turn": "a conversation's, and that of a project in a queue",
    "word": "what is between two spaces",
}  # fmt: skip
"""Words to avoid that have an ordinary meaning in which they are used, and which: reviews look for these."""
ALSO_AVOIDED: Final = frozenset({"told", "said", "heard", "nobody", "whoever", "anybody", "somebody"})
"""Forms of words of the glossary, and pronouns in place of a plain subject."""
PAGES: Final = (".md", ".yaml", ".yml", ".sh", ".sql", ".mjs", "Dockerfile")
"""Files with sentences for users and operators, besides Python."""
WRITTEN_BY_TOOLS: Final = ("package-lock.json",)


@cache
def _avoided() -> re.Pattern[str]:
    """The words of the glossary's column "avoid" that are never right."""
    rows = re.findall(r"^\| [^|]+ \| [^|]+ \| ([^|]*) \|$", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    listed = {re.sub(r" \(.*", "", word.strip()) for row in rows for word in re.split("[,;]", row)}
    words = {word for word in listed if word.strip("-")} - {"avoid"}
    assert words > ORDINARY.keys(), ORDINARY.keys() - words
    return re.compile(
        rf"(?<![\w-])({'|'.join(sorted(words - ORDINARY.keys() | ALSO_AVOIDED))})s?(?![\w-])", re.IGNORECASE
    )


def _found(file: str, texts: Iterator[str]) -> set[str]:
    """The words to avoid in these texts; words in capitals are names."""
    matches = (match[0] for text in without_code(texts) for match in _avoided().finditer(text))
    return {f"{file}: {word}" for word in matches if not word.isupper()}


@pytest.mark.parametrize("package", PACKAGES)
def test_words_to_avoid_are_in_no_text_of_a_package(package: str, product: list[Any]) -> None:
    """The glossary says which word is used in docstrings, comments, log messages, help, errors and metrics instead."""
    own = [source for source in product if source.name.startswith(PACKAGES[package])]
    found = {word for source in own for word in _found(source.name, sentences(source.tree, source.text))}
    names = {f"{source.name}: {name}" for source in own for name in _classes(source) if _avoided().fullmatch(name)}
    _expect_none(package, found | names)


def test_words_to_avoid_are_in_no_text_of_the_tests(sources: list[Any]) -> None:
    """Docstrings, comments and errors of tests, doubles, benchmarks and their programs use the same words."""
    tests = [source for source in sources if source.name.startswith("tests/")]
    found = {word for source in tests for word in _found(source.name, sentences(source.tree, source.text))}
    found |= {f"{source.name}: {name}" for source in tests for name in _classes(source) if _avoided().fullmatch(name)}
    assert len(tests) > len(PACKAGES)
    assert found == set()


def test_words_to_avoid_are_on_no_page(files: list[str], sources: list[Any]) -> None:
    """README, CONTRIBUTING, CHANGELOG, docs, runbooks, alert rules, deployment files and examples are searched."""
    outside = [name for name in files if not name.startswith(("libs/", "services/", "tests/"))]
    pages = [name for name in outside if name.endswith(PAGES)]
    found = {word for name in pages for word in _found(name, iter([prose(name, (ROOT / name).read_text())]))}
    programs = [source for source in sources if source.name in outside]
    found |= {word for source in programs for word in _found(source.name, sentences(source.tree, source.text))}
    assert {"CHANGELOG.md", "deploy/prometheus/rules/sandherd.yaml", "docs/runbooks/SandherdDiskFull.md"} <= set(pages)
    assert found == set()


UNCLEAR: Final = re.compile(
    r"_(told|said|heard|hears|kept|nobody|whoever|whatever|somebody|anybody|grave|gone_on|goes_on|what_is_no|is_well)(?=_|$)"
)
"""Phrases that leave the subject or the result of a test open; its name has subject, condition and result."""


def test_test_names_contain_no_unclear_phrase(sources: list[Any]) -> None:
    """Each test is named by subject, condition and result."""
    tests = [source for source in sources if source.name.startswith("tests/")]
    found = {(source.name, name) for source in tests for name in re.findall(r"\bdef (test_\w+)\(", source.text)}
    assert {(file, name) for file, name in found if UNCLEAR.search(name)} == set()
