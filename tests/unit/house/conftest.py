"""The source files of the repository, as the house rules look at them."""

import ast
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest

from tests.unit.house.texts import nodes_of

ROOT = Path(__file__).parents[3]
PRODUCT = ("libs", "services")

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Source:
    """A Python file, by its path from the root."""

    name: str

    @cached_property
    def text(self) -> str:
        return (ROOT / self.name).read_text(encoding="utf-8")

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @property
    def lines(self) -> int:
        return self.text.count("\n")

    @property
    def functions(self) -> Iterator[Function]:
        return (node for node in nodes_of(self.tree) if isinstance(node, Function))

    @property
    def imports(self) -> set[str]:
        """The top-level packages it imports."""
        found: set[str] = set()
        for node in nodes_of(self.tree):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                found.add(node.module.partition(".")[0])
        return found


def committed() -> list[str]:
    """Every file that is or would be committed."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return sorted(name for name in set(listed) if (ROOT / name).is_file())


@pytest.fixture(scope="session")
def files() -> list[str]:
    return committed()


@pytest.fixture(scope="session")
def sources(files: list[str]) -> list[Source]:
    return [Source(name) for name in files if name.endswith(".py")]


@pytest.fixture(scope="session")
def product(sources: list[Source]) -> list[Source]:
    return [source for source in sources if source.name.startswith(PRODUCT)]
