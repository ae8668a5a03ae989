"""Imports form no cycle: neither between modules, nor between the packages and modules beside each other."""

import importlib
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import grimp
import pytest

ROOT = Path(__file__).parents[3]
ENTANGLED = {
    "spawner": "`live_state` stores the records that `tasks`, `sandboxes`, `pool` and `named_secrets` define and is "
    "used by their handlers; `tasks` and `sandboxes` decide about each other's records. An order needs one package for "
    "all records and decisions; their modules form no cycle",
}
"""Packages whose children may import each other in a cycle, with the reason. The modules in them still may not."""

Imports = Mapping[str, set[str]]


def packages() -> list[str]:
    """The top-level packages of the product."""
    return sorted(
        path.parent.name for folder in ("libs", "services/*") for path in ROOT.glob(f"{folder}/*/__init__.py")
    )


@pytest.fixture(scope="module")
def imports() -> Imports:
    """What each module of the product imports: also inside functions, and only for types."""
    return graph_of(*packages())


def graph_of(*names: str) -> Imports:
    graph = grimp.build_graph(*names, exclude_type_checking_imports=False, cache_dir=None)
    return {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}


def cycles(imports: Imports) -> list[list[str]]:
    """The groups of modules that import each other, directly or through others (Tarjan's algorithm)."""
    reached: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        reached[module] = lowest[module] = len(reached)
        stack.append(module)
        for imported in sorted(imports.get(module, ())):
            if imported not in reached:
                visit(imported)
            if imported in stack:
                lowest[module] = min(lowest[module], lowest[imported])
        if lowest[module] == reached[module]:
            group = stack[stack.index(module) :]
            del stack[-len(group) :]
            found.append(sorted(group))

    for module in sorted(imports):
        if module not in reached:
            visit(module)
    return [group for group in found if len(group) > 1]


def between_children(imports: Imports, package: str) -> Imports:
    """What each child of a package, with all below it, imports of its siblings."""
    found: dict[str, set[str]] = {}
    for module, imported in imports.items():
        child = child_of(package, module)
        if child is not None:
            siblings = {sibling for name in imported if (sibling := child_of(package, name)) not in {None, child}}
            found.setdefault(child, set()).update(name for name in siblings if name is not None)
    return found


def child_of(package: str, module: str) -> str | None:
    """The child of the package that the module is or is in; None if it is elsewhere."""
    prefix = f"{package}."
    return prefix + module.removeprefix(prefix).partition(".")[0] if module.startswith(prefix) else None


def entangled(imports: Imports) -> Iterator[tuple[str, list[str]]]:
    """The packages with children that import each other in a cycle, and these children."""
    for package in sorted({module.rpartition(".")[0] for module in imports} - {""}):
        for group in cycles(between_children(imports, package)):
            yield package, group


def test_every_package_is_checked() -> None:
    """No package of the product is left out."""
    assert {"sandherd", "spawner", "sandherd_network", "sandherd_worker", "sandherd_drivers"} < set(packages())
    assert all(importlib.util.find_spec(name) for name in packages())


def test_modules_import_no_cycle(imports: Imports) -> None:
    """No module imports itself through others: not at run time, not inside a function, not only for types."""
    assert cycles(imports) == []


def test_siblings_import_no_cycle(imports: Imports) -> None:
    """Packages and modules beside each other have an order, except in the packages that are listed with a reason."""
    assert sorted({package for package, _ in entangled(imports)}) == sorted(ENTANGLED)


def test_parts_that_all_packages_may_import_import_only_contracts(imports: Imports) -> None:
    """`archives`, `shell` and the modules beside the packages are below all packages that import-linter orders."""
    rules = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = (rule["layers"] for rule in rules if rule["id"] == "libs")
    ordered = {f"sandherd.{name}" for layer in layers for name in re.findall(r"\w+", layer)}
    found = between_children(imports, "sandherd")
    shared = found.keys() - ordered
    assert {"sandherd.archives", "sandherd.shell", "sandherd.backoff", "sandherd.plurals"} < shared
    assert {name: more for name in shared if (more := found[name] - shared - {"sandherd.contracts"})} == {}


def test_contracts_import_no_other_package(imports: Imports, product: list[Any]) -> None:
    """Contracts import a single module of ours, and of libraries pydantic, with its core, and uuid_utils."""
    assert between_children(imports, "sandherd")["sandherd.contracts"] == {"sandherd.plurals"}
    sources = [source for source in product if source.name.startswith("libs/sandherd/contracts/")]
    imported = set().union(*(source.imports for source in sources))
    assert imported - sys.stdlib_module_names == {"sandherd", "pydantic", "pydantic_core", "uuid_utils"}


@pytest.mark.parametrize(
    "later",
    [
        "from artificial.one import ONE",
        "def two():\n    from artificial.one import ONE\n    return ONE",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from artificial.one import ONE",
    ],
    ids=["at run time", "in a function", "for types"],
)
def test_an_artificial_cycle_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, later: str) -> None:
    """Each kind of import that closes a cycle is found, of modules and of the packages that they are in."""
    package = tmp_path / "artificial"
    (package / "upper").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "upper" / "__init__.py").touch()
    (package / "one.py").write_text("import artificial.upper.two\nONE = 1\n")
    (package / "upper" / "two.py").write_text(f"{later}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = graph_of("artificial")
    assert cycles(found) == [["artificial.one", "artificial.upper.two"]]
    assert list(entangled(found)) == [("artificial", ["artificial.one", "artificial.upper"])]
    assert "artificial" not in sys.modules
