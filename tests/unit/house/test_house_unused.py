"""The product has no function, class, method or constant that is used only by tests, or not at all."""

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.unit.house.texts import nodes_of

ROOT: Final = Path(__file__).parents[3]
NOT_NAMED: Final = {
    ("hatch_build", "PagesHook"): "the build backend finds it by its base class",
    ("sandherd_network.forwarder", "preload"): "the fork server loads the module by its name",
    ("sandherd_worker.main", "preload"): "the fork server loads the module by its name",
    ("sandherd_worker.rehearsal", "rehearse"): "a waiting worker loads the module by its name",
    ("sandherd.contracts.records", "RECORDS"): "tests compare the golden examples with this table",
    ("sandherd.telemetry.fields", "NAMES"): "tests compare all log lines with the declared fields",
    ("RuntimeContext", "of_boxes"): "docs/plugins.md describes it for plugins",
    ("spawner.runtimes.plugin", "OpenRuntime"): "the type of the functions in plugins",
}
"""Names that no code of the product uses, with their module or class, and the reason."""
EVENTS: Final = "sandherd.contracts.events."
"""Event classes register themselves by their type. `test_house_events.py` checks that each is published."""
READ_FROM_EACH_MODULE: Final = {"RULE": "monitor.rules.", "ANSWERED": "spawner."}
"""Names that each module below a package may define, because the package reads them from all of its modules."""
BASES: Final = {"BaseModel", "Enum", "Exception", "Generic", "NamedTuple", "Protocol", "StrEnum", "TypedDict"}
"""Foreign base classes that call no method of a subclass. Others may call any of its methods."""
CALLED_BY_LIBRARIES: Final = {"WorkClient"}
"""Classes without a base class whose methods a library calls."""
PASSIVE: Final = {"cached_property", "classmethod", "contextmanager", "property", "staticmethod"}
"""Decorators that register nothing. Others, such as `app.command`, may call the function."""
ENTRY_POINT: Final = re.compile(r'= "([\w.]+):(\w+)"')
LAZY_NAME: Final = re.compile(r"[\w.:-]+")
"""A text by which a module may load a name later, such as `monitor.replay.report:replay_by_settings`."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def module_of(file: str) -> str:
    """The module of a product file: `spawner.main` of `services/spawner/spawner/main.py`."""
    parts = file.removesuffix(".py").removesuffix("/__init__").split("/")
    return ".".join(parts[1:] if parts[0] == "libs" else parts[2:])


def defined(tree: ast.Module) -> Iterator[tuple[str, ast.stmt]]:
    """The functions, classes and constants of a module, with their statements."""
    for node in tree.body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                if is_passive(node):
                    yield name, node
            case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]):
                yield name, node


def is_passive(node: Function | ast.ClassDef) -> bool:
    """Whether no decorator of a function registers it."""
    names = {getattr(one, "id", getattr(one, "attr", None)) for one in node.decorator_list}
    return isinstance(node, ast.ClassDef) or names <= PASSIVE


def reads(nodes: Iterable[ast.AST]) -> Counter[str]:
    """How often each name is read."""
    return Counter(node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load))


def imports(source: Any) -> Iterator[tuple[str, str]]:
    """The names that a file imports, or reads from an imported module, each with the module."""
    nodes, modules = nodes_of(source.tree), {}
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                modules[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                yield node.module or "", alias.name
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            yield modules[node.value.id], node.attr


def lazy_names(source: Any) -> Iterator[str]:
    """The names in texts of a file that have no blanks, because its module may load them later."""
    for node in nodes_of(source.tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and LAZY_NAME.fullmatch(node.value):
            yield re.split("[.:]", node.value)[-1]


def entry_points() -> Iterator[tuple[str, str]]:
    for path in (ROOT / "libs/pyproject.toml", *ROOT.glob("services/*/pyproject.toml")):
        yield from ENTRY_POINT.findall(path.read_text())


@pytest.fixture(scope="module")
def users(sources: list[Any]) -> list[Any]:
    """The files that are no tests: the product, and the programs that generate its documents."""
    return [source for source in sources if not source.name.startswith("tests/")]


def test_every_function_class_and_constant_is_used(product: list[Any], users: list[Any]) -> None:
    """Its module reads it, another module imports it, perhaps from the package, or a text names it."""
    used = {pair for source in users for pair in imports(source)} | set(entry_points()) | NOT_NAMED.keys()
    lazy = {name for source in users for name in lazy_names(source)}
    unused = set()
    for source in product:
        module, counts = module_of(source.name), reads(nodes_of(source.tree))
        owners = (module, module.rpartition(".")[0])
        for name, node in defined(source.tree):
            if all((one, name) not in used for one in owners) and counts[name] <= reads(ast.walk(node))[name]:
                unused.add((module, name))
    exempt = {(module, name) for module, name in unused if name in lazy or is_registered(module, name)}
    assert unused - exempt == set()


def is_registered(module: str, name: str) -> bool:
    """Whether the package reads this name from all of its modules."""
    return module.startswith((EVENTS, READ_FROM_EACH_MODULE.get(name, EVENTS))) or name.startswith("__")


def test_every_method_is_used(product: list[Any], users: list[Any]) -> None:
    """Some code of the product has its name as an attribute or in a text."""
    nodes = [node for source in users for node in nodes_of(source.tree)]
    used = {node.attr for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)}
    used |= {name for source in users for name in lazy_names(source)}
    classes = [node for source in product for node in nodes_of(source.tree) if isinstance(node, ast.ClassDef)]
    own = {node.name for node in classes} | BASES
    known = [node for node in classes if all(name_of(base) in own for base in node.bases)]
    methods = [(node.name, one) for node in known for one in node.body if isinstance(one, Function)]
    assert len(methods) > 2000
    unused = {(name, method.name) for name, method in methods if method.name not in used and is_passive(method)}
    exempt = {(name, method) for name, method in unused if name in CALLED_BY_LIBRARIES or method.startswith("__")}
    assert unused - exempt - NOT_NAMED.keys() == set()


def name_of(base: ast.expr) -> str:
    """The name of a base class without its module and its parameters."""
    match base:
        case ast.Subscript(value=value):
            return name_of(value)
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
    return ""
