"""What is where, what it is called, and what it may know."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
BANNED_NAMES = {"common", "commons", "util", "utils", "helper", "helpers", "manager", "managers", "misc"}
CONTRACTS_KNOW = {"pydantic", "pydantic_core", "uuid_utils", "sandherd"}
BUNDLED = {
    "pydantic_core": {"pydantic"},
    "openhands": {"openhands-sdk", "openhands-tools"},
    "acp": {"agent-client-protocol"},
}
"""Modules that come with a distribution of another name, and are not always installed."""
# Written in pieces, so that this file does not name them.
REGISTRY = re.compile("|".join(("pypi" + r"\.org", "python" + "hosted", "registry" + r"\.npmjs", "npmjs" + r"\.com")))
PLACES = ("/ro" + r"ot/\.(pyenv|cache|venv)", "/wo" + "rk/(main|shared)", "/op" + "t/(wheels|pypi)", "/tm" + "p/notes")
MACHINE = re.compile("|".join(PLACES))


def test_no_file_has_a_name_that_says_nothing(sources: list[Any]) -> None:
    """There is no `common`, `utils`, `helpers` or `manager`, as a folder, a file or a class."""
    named = {source.name: {part.removesuffix(".py") for part in Path(source.name).parts} for source in sources}
    assert {name for name, parts in named.items() if parts & BANNED_NAMES} == set()
    named_so = re.compile(r"^ *class \w*(Manager|Helper|Utils?)\b", re.MULTILINE)
    assert [source.name for source in sources if named_so.search(source.text)] == []


def test_no_file_names_a_registry_or_this_machine(files: list[str]) -> None:
    """The project does not state where packages come from, and where it was written."""
    texts = {name: (ROOT / name).read_bytes().decode(errors="replace") for name in files}
    assert [name for name, text in texts.items() if REGISTRY.search(text) or MACHINE.search(text)] == []


def test_contracts_know_pydantic_and_nothing_else(product: list[Any]) -> None:
    """The contracts import the standard library, pydantic and uuid_utils; import-linter sees to the rest."""
    contracts = [source for source in product if source.name.startswith("libs/sandherd/contracts/")]
    known = CONTRACTS_KNOW | sys.stdlib_module_names
    assert {source.name: source.imports - known for source in contracts if source.imports - known} == {}


def test_nothing_is_imported_that_is_not_declared(product: list[Any]) -> None:
    """What a project imports, its pyproject names: its environment may be built from that alone."""
    missing = {}
    for project in sorted({project_of(source.name) for source in product}):
        # A hook of the build imports what its `build-system` requires.
        sources = [source for source in product if not source.name.endswith("/hatch_build.py")]
        imported = set().union(*(source.imports for source in sources if project_of(source.name) == project))
        unknown = {module for module in imported - sys.stdlib_module_names if not declared(project, module)}
        if unknown:
            missing[project] = unknown
    assert missing == {}


def project_of(name: str) -> str:
    """The folder of the project that a file belongs to."""
    parts = Path(name).parts
    return parts[0] if parts[0] == "libs" else "/".join(parts[:2])


def declared(project: str, module: str) -> bool:
    """Whether a project names a distribution that has this module, or is it itself."""
    own = {path.name for path in (ROOT / project).iterdir()}
    providers = {normal(name) for name in installed().get(module, [module])} | BUNDLED.get(module, set())
    return module in own or bool(providers & set(dependencies(project)))


@cache
def installed() -> Mapping[str, list[str]]:
    """The distributions that have each top-level module."""
    return packages_distributions()


def dependencies(project: str) -> Iterator[str]:
    """The distributions that a project names, with those of the extras of ours that it asks for."""
    table = tomllib.loads((ROOT / project / "pyproject.toml").read_text())["project"]
    extras = table.get("optional-dependencies", {})
    for requirement in [*table["dependencies"], *(part for extra in extras.values() for part in extra)]:
        name, wanted = split(requirement)
        yield name
        if name == "sandherd" and project != "libs":
            yield from ours(wanted)


def ours(extras: set[str]) -> Iterator[str]:
    """What `sandherd` with these extras brings along."""
    table = tomllib.loads((ROOT / "libs" / "pyproject.toml").read_text())["project"]
    wanted = [part for extra in extras for part in table["optional-dependencies"][extra]]
    for requirement in [*table["dependencies"], *wanted]:
        yield split(requirement)[0]


def split(requirement: str) -> tuple[str, set[str]]:
    """The name and the extras of a requirement."""
    found = re.match(r"([A-Za-z0-9._-]+)(?:\[([^]]*)])?", requirement)
    assert found
    return normal(found[1]), set((found[2] or "").split(",")) - {""}


def normal(name: str) -> str:
    """A distribution's name, normalised (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def test_a_test_waits_for_a_condition(sources: list[Any]) -> None:
    """No test sleeps for a while and hopes: a sleep stands in a loop that looks at a condition, or has a reason."""
    tests = [source for source in sources if source.name.startswith("tests/") and ".sleep(" in source.text]
    bare = [(source, line) for source in tests for line in sleeps(source.tree) if not reason(source, line)]
    assert [f"{source.name}:{line}" for source, line in bare] == []


def reason(source: Any, line: int) -> str:
    """The comment on a line."""
    return str(source.text.splitlines()[line - 1].partition("#")[2].strip())


def sleeps(tree: ast.AST, in_loop: bool = False) -> Iterator[int]:
    """The lines that sleep outside a loop."""
    for node in ast.iter_child_nodes(tree):
        looping = in_loop or isinstance(node, ast.While | ast.For | ast.AsyncFor)
        if isinstance(node, ast.Call) and not looping and is_sleep(node):
            yield node.lineno
        yield from sleeps(node, looping)


def is_sleep(call: ast.Call) -> bool:
    """Whether a call is `….sleep(seconds)` with seconds that are more than nothing."""
    pause = call.args[0] if call.args else None
    yields = isinstance(pause, ast.Constant) and pause.value == 0
    return isinstance(call.func, ast.Attribute) and call.func.attr == "sleep" and not yields
