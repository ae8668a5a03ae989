"""Checks PromQL queries against the table of metrics: undeclared series and meaningless sums are refused.

Labels that a herd's own metrics do not have are set by the scrape configuration: `job` is the herd, `service` the
service, `instance` the replica.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

import promql_parser as parser

from sandherd.telemetry.metrics import BORROWED, BY_NAME, Metric, MetricKind

HERD: Final = "job"
SCRAPED: Final = frozenset({HERD, "service", "instance"})
COUNTED: Final = frozenset(
    {
        *("sandherd_ready", "sandherd_connected", "sandherd_lease_held", "sandherd_gateway_streams"),
        *("sandherd_monitor_partitions_held", "sandherd_watched_sandboxes"),
        *("sandherd_spool_events", "sandherd_calls_in_flight", "sandherd_outage_sandboxes"),
    }
)
"""Gauges whose values in different replicas are independent, so that their sum is meaningful."""
_OWN: Final = {name for name in BORROWED if name.startswith("process_")}
_PARTS: Final = ("_bucket", "_sum", "_count")
_RATES: Final = frozenset({"rate", "irate", "increase"})
_COUNTING: Final = frozenset({"count", "group"})
_SPANS: Final = {"$__rate_interval": "5m", "$__interval": "1m", "$__range": "1h"}
_WORDS: Final = re.compile(r"\b(?:sandherd|process)_\w+(\{)?")
_SINGLE: Final = re.compile(r"\{\{\s*(\w+)\s*\}\}")
_PLAIN: Final = re.compile(r"[\w.|-]+")


class QueryError(ValueError):
    """The query uses undeclared names, or is meaningless."""


@dataclass(frozen=True)
class Within:
    """The context of a part of a query."""

    rated: bool = False
    added: bool = False
    counted: bool = False


Labels = frozenset[str]


def labels_of(query: str) -> Labels:
    """The labels that a query's results may have. Raises `QueryError`."""
    for name, span in _SPANS.items():
        query = query.replace(name, span)
    try:
        parsed = parser.parse(query)
    except ValueError as error:
        raise QueryError(f"{query}: {error}") from error
    try:
        return _read(parsed, Within())
    except QueryError as error:
        raise QueryError(f"{query}: {error}") from error


def legend_of(text: str, query: str) -> str:
    """The legend, if the query's results have all of its labels. Raises `QueryError`."""
    for name in _SINGLE.findall(text):
        _known({name}, labels_of(query), f"the legend {text!r}")
    return text


def metrics_of(query: str) -> set[str]:
    """The metrics in a query, by their names in the table."""
    return {_metric(match.group().removesuffix("{"))[0] for match in _WORDS.finditer(query)}


def of_herd(query: str, herd: str = "$herd") -> str:
    """The query, restricted to one herd."""
    chosen = f'{HERD}="{herd}"'
    return _WORDS.sub(lambda match: f"{match.group().removesuffix('{')}{{{chosen}{',' if match[1] else '}'}", query)


# --- parts of a query ------------------------------------------------------------------------------------------------


def _read(part: Any, within: Within) -> Labels:
    readers: dict[type, Callable[[Any, Within], Labels]] = {
        parser.VectorSelector: _selector,
        parser.AggregateExpr: _aggregate,
        parser.BinaryExpr: _binary,
        parser.Call: _call,
        parser.ParenExpr: lambda held, around: _read(held.expr, around),
        parser.UnaryExpr: lambda held, around: _read(held.expr, around),
        parser.SubqueryExpr: lambda held, around: _read(held.expr, Within(counted=around.counted)),
        parser.MatrixSelector: lambda held, around: _selector(held.vector_selector, around),
        parser.NumberLiteral: lambda _held, _around: frozenset(),
        parser.StringLiteral: lambda _held, _around: frozenset(),
    }
    return readers[type(part)](part, within)


def _selector(part: Any, within: Within) -> Labels:
    name, metric = _metric(part.name or "")
    grows = metric is None or metric.kind is not MetricKind.GAUGE
    if metric is None:
        grows = name.endswith("_total")
    if grows != within.rated and not within.counted:
        raise QueryError(f"{part.name} is a counter: rate or increase" if grows else f"{part.name} is a gauge")
    if within.added and not grows and name not in COUNTED | _OWN:
        raise QueryError(f"{name} is the same in every replica, or is exposed by one: take max or min")
    own = {label.name: label for label in metric.labels} if metric else {}
    known = frozenset(own) | SCRAPED | ({"le"} if part.name.endswith("_bucket") else frozenset())
    for matcher in part.matchers.matchers:
        _known({matcher.name}, known, part.name)
        if matcher.name in own and not own[matcher.name].named and _PLAIN.fullmatch(matcher.value):
            _known(set(matcher.value.split("|")), own[matcher.name].values, f"{part.name}, {matcher.name}")
    return known


def _metric(name: str) -> tuple[str, Metric | None]:
    """The name and row of a series in the table; no row for metrics that every program has."""
    if name in _OWN:
        return name, None
    whole = next((name.removesuffix(part) for part in _PARTS if name.endswith(part)), name)
    found = BY_NAME.get(name) or BY_NAME.get(whole)
    if found is None or (found.kind is MetricKind.HISTOGRAM) == (found.name == name):
        raise QueryError(f"no such series: {name or 'a selector without a name'}")
    return found.name, found


def _aggregate(part: Any, within: Within) -> Labels:
    named = str(part.op)
    inner = _read(part.expr, Within(added=named in {"sum", "avg"}, counted=within.counted or named in _COUNTING))
    if part.modifier is None:
        return inner if named in {"topk", "bottomk"} else frozenset()
    given = frozenset(part.modifier.labels)
    _known(given, inner, named)
    return given if part.modifier.type == parser.AggModifierType.By else inner - given


def _binary(part: Any, within: Within) -> Labels:
    named = str(part.op)
    around = Within(counted=within.counted)
    left, right = _read(part.lhs, around), _read(part.rhs, around)
    matching = part.modifier.matching if part.modifier else None
    given = frozenset(matching.labels) if matching else frozenset()
    _known(given, left & right, named)
    if named == "or":
        return left | right
    if matching is None or named in {"and", "unless"}:
        return left or right
    return given if str(matching.type).endswith("Include") and "OneToOne" in str(part.modifier.card) else left | right


def _call(part: Any, within: Within) -> Labels:
    named = part.func.name
    around = Within(named in _RATES, within.added and named not in _RATES, within.counted or named == "absent")
    found: Labels = frozenset().union(*(_read(argument, around) for argument in part.args))
    if named == "histogram_quantile":
        _known({"le"}, found, named)
        return found - {"le"}
    return found


def _known(given: Iterable[str], known: Iterable[str], where: str) -> None:
    strange = sorted(set(given) - set(known))
    if strange:
        raise QueryError(f"{where} has no {', '.join(strange)}")
