"""The generated parts of docs/architecture.md.

Diagrams from the tables of subjects, streams and buckets and from the import rules, and the numbers of files of its
paths.
"""

import re
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from architecture_paths import event_counts, task_counts

from sandherd.bus.auth.permissions import SERVICES
from sandherd.contracts.streams import BUCKETS, CONSUMERS, STREAMS
from sandherd.contracts.subjects import TABLE, Principal, Subject

ROOT: Final = Path(__file__).parent.parent
USERS: Final = frozenset({Principal.CLIENT, Principal.OPERATOR})
NAMED: Final = 3
"""Maximum number of requests that an arrow names. An arrow with more requests shows their number."""
PROBES: Final = "PROBE"
"""A stream without a place in the diagram: each service writes to it, only to check that the broker stores messages."""

Edges = Mapping[tuple[str, str], list[str]]


def node(name: str) -> str:
    """The id of a node, without the characters that Mermaid reserves, and never the word `end`."""
    return re.sub(r"\W", "_", name)


def ends(principals: Iterable[Principal]) -> list[str]:
    """The nodes for these principals: one for all services, and one for clients and operators."""
    left, found = set(principals), []
    for group, name in ((frozenset(SERVICES), "services"), (USERS, "users")):
        if left >= group:
            left -= group
            found.append(name)
    return found + sorted(node(principal) for principal in left)


def diagram(direction: str, lines: Iterable[str]) -> str:
    """A flowchart as a block of Markdown."""
    return f"```mermaid\nflowchart {direction}\n" + "".join(f"    {line}\n" for line in lines) + "```\n"


def actors(used: set[str]) -> Iterator[str]:
    """The nodes of the principals that are used, with the services in a frame."""
    yield "subgraph services [services]"
    yield from (f"    {node(service)}([{service}])" for service in SERVICES)
    yield "end"
    outside = [item for item in Principal if item not in SERVICES and node(item) in used]
    yield from (f"{node(item)}([{item}])" for item in outside)
    if "users" in used:
        yield "users([client, operator])"


def streams() -> str:
    """The publishers and consumers of each stream."""
    arrows = [*_to_streams(), *_from_streams()]
    nodes = [f"{row.name}[({row.name})]" for row in STREAMS if row.name != PROBES]
    return diagram("LR", [*actors(_nodes_of(arrows)), *nodes, *arrows])


def _to_streams() -> Iterator[str]:
    for stream in STREAMS:
        rows = [row for row in TABLE if row.stream == stream.name]
        yield from (f"{end} --> {stream.name}" for end in ends({item for row in rows for item in row.producers}))


def _from_streams() -> Iterator[str]:
    for stream in STREAMS:
        durable = {row.service for row in CONSUMERS if row.stream == stream.name}
        others = {item for row in TABLE if row.stream == stream.name for item in row.consumers} - durable
        yield from (f"{stream.name} --> {end}" for end in ends(durable))
        yield from (f"{stream.name} -.-> {end}" for end in ends(others))


def requests() -> str:
    """The senders and receivers of requests, which no stream stores."""
    edges: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for row in TABLE:
        for pair in _between(row) if row.stream is None else ():
            edges[pair].append(row.template.split(".")[4] if row.name.startswith("request.") else row.kind)
    arrows = [f'{one} -->|"{_label(names)}"| {other}' for (one, other), names in sorted(edges.items())]
    return diagram("LR", [*actors(_nodes_of(arrows)), *arrows])


def _between(row: Subject) -> Iterator[tuple[str, str]]:
    return ((one, other) for one in ends(row.producers) for other in ends(row.consumers))


def _label(names: list[str]) -> str:
    return ", ".join(sorted(names)) if len(names) <= NAMED else f"{len(names)} requests"


def buckets() -> str:
    """The writers of each bucket, and its other readers."""
    arrows = [f"{end} --> {row.name}" for row in BUCKETS for end in ends(row.owners)]
    arrows += [f"{row.name} -.-> {end}" for row in BUCKETS for end in ends(row.readers - row.owners)]
    nodes = [f"{row.name}[({row.name})]" for row in BUCKETS]
    return diagram("LR", [*_renamed(nodes, arrows)])


def _renamed(nodes: list[str], arrows: list[str]) -> Iterator[str]:
    """The nodes with other ids for buckets, because a bucket and a service have the same name."""
    names = {row.name for row in BUCKETS}
    yield from actors(set())
    yield from (f"bucket_{item}" for item in nodes)
    for arrow in arrows:
        left, line, right = arrow.split(" ")
        owned = line == "-->"
        yield f"{left} {line} bucket_{right}" if owned and right in names else f"bucket_{left} {line} {right}"


def packages() -> str:
    """The permitted imports, from the rules in pyproject.toml. An arrow includes all layers below its end."""
    table = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]
    rules = {rule["id"]: rule for rule in table}
    layers = [re.findall(r"\w+", layer) for layer in rules["libs"]["layers"]]
    lines = ["subgraph libs [libs/sandherd]"]
    lines += [f"    {name}[{name}]" for layer in layers for name in layer]
    lines += [f"    {arrow}" for arrow in _in_libs(layers, rules["local-stack"])]
    return diagram("TB", [*lines, "end", *_services(rules, layers)])


def _in_libs(layers: list[list[str]], stack: Mapping[str, Any]) -> Iterator[str]:
    """From each layer to the one below, and the modules that may import the stack."""
    sources, denied = (set(map(_last, stack[key])) for key in ("source_modules", "forbidden_modules"))
    for above, below in pairwise(layers):
        pairs = ((upper, lower) for upper in above for lower in below)
        yield from (f"{one} --> {other}" for one, other in pairs if one not in sources or other not in denied)
    # A module may import several of the stack's: one arrow.
    for one, other in dict.fromkeys(_permitted(line) for line in stack["ignore_imports"]):
        yield f'{one.split(".")[1]} -.->|"{_last(one)}"| {other}'


def _permitted(line: str) -> tuple[str, str]:
    """The importing module, and the package of libs that it imports from."""
    one, _, other = line.partition(" -> ")
    return one, other.split(".")[1]


def _last(module: str) -> str:
    return module.rpartition(".")[2]


def _services(rules: Mapping[str, Any], layers: list[list[str]]) -> Iterator[str]:
    """The services, and the topmost layer of the libs that each may import."""
    forbidden = {name: set(rule["forbidden_modules"]) for rule in rules.values() for name in _limited(rule)}
    for service in rules["services"]["modules"]:
        denied = forbidden.get(service, set())
        yield f"{service}[{service}]"
        if "sandherd" in denied:
            continue
        free = [layer for layer in layers if not {f"sandherd.{name}" for name in layer} & denied]
        yield f"{service} --> libs" if free == layers else f"{service} --> {free[0][0]}"


def _limited(rule: Mapping[str, Any]) -> list[str]:
    """The service of a rule, if the rule is about a single service."""
    sources: list[str] = rule.get("source_modules", [])
    return sources if rule["type"] == "forbidden" and len(sources) == 1 else []


def _nodes_of(arrows: Iterable[str]) -> set[str]:
    return {word for arrow in arrows for word in (arrow.split(" ")[0], arrow.split(" ")[-1])}


BLOCKS: Final[Mapping[str, Callable[[], str]]] = {
    "streams": streams,
    "requests": requests,
    "buckets": buckets,
    "packages": packages,
    "event_files": event_counts,
    "task_files": task_counts,
}
