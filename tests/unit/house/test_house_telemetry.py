"""Every metric, span and log field is declared, and nothing is declared that is not used."""

import ast
from collections.abc import Iterator
from typing import Any

from sandherd.telemetry import spans
from sandherd.telemetry.fields import ALWAYS, FIELDS, NAMES
from sandherd.telemetry.messages import MESSAGES
from sandherd.telemetry.metrics import METRICS
from sandherd.telemetry.spans import SPANS
from tests.unit.house.texts import nodes_of

LEVELS = {"debug", "info", "warning", "error", "exception", "critical"}
STANDARD = {"exc_info"}
"""What structlog itself takes; it becomes `exception`."""
BY_LIBRARIES = {"queue", "stream", "message_id", "subject"}
"""What FastStream says beside its own lines."""
MADE = {"trace_id", "span_id", "exception", "error", "cause", "places"}
"""Made by `telemetry.logs`."""
TABLES = "libs/sandherd/telemetry/"


def log_calls(sources: list[Any]) -> Iterator[tuple[str, ast.Call]]:
    for source in sources:
        for node in nodes_of(source.tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LEVELS:
                spoken = ast.unparse(node.func.value)
                if spoken.endswith("_log") or "logs.get(" in spoken or "get_logger(" in spoken:
                    yield f"{source.name}:{node.lineno}", node


def test_every_log_field_is_declared(product: list[Any]) -> None:
    """A field that a log call names stands in `telemetry.fields`; `**` is allowed for `logs.error_fields` alone."""
    unknown: dict[str, list[str]] = {}
    used: set[str] = set()
    for where, call in log_calls(product):
        named = {keyword.arg for keyword in call.keywords if keyword.arg} - STANDARD
        spread = [ast.unparse(keyword.value) for keyword in call.keywords if keyword.arg is None]
        wrong = [*(named - NAMES), *(value for value in spread if not value.startswith("logs.error_fields("))]
        unknown |= {where: wrong} if wrong else {}
        used |= named
    assert unknown == {}
    assert {field.name for field in FIELDS} - used - MADE - BY_LIBRARIES == set()


def test_no_field_is_declared_twice() -> None:
    """One name, one meaning."""
    names = [field.name for field in (*ALWAYS, *FIELDS)]
    assert sorted(names) == sorted(set(names))
    assert len({metric.name for metric in METRICS}) == len(METRICS)
    assert len({row.name for row in SPANS}) == len(SPANS)


def test_every_log_message_is_declared_and_logged(product: list[Any]) -> None:
    """The text of a log call is a literal of `telemetry.messages`, at its level; each row of the table is logged."""
    logged: set[tuple[str, str]] = set()
    varying = []
    for where, call in log_calls(product):
        match call:
            case ast.Call(func=ast.Attribute(attr=level), args=[ast.Constant(value=str(text))]):
                logged.add(("error" if level == "exception" else level, text))
            case _:
                varying.append(where)
    assert varying == []
    declared = {(row.level, row.text) for rows in MESSAGES.values() for row in rows}
    assert (logged - declared, declared - logged) == (set(), set())


def test_log_messages_are_short_phrases_with_a_meaning() -> None:
    """One row per text; no full stop, no placeholder; the meaning is a sentence, and each error names a fix."""
    rows = [row for group in MESSAGES.values() for row in group]
    texts = [row.text for row in rows]
    assert sorted(texts) == sorted(set(texts))
    assert [text for text in texts if not text[0].islower() or text.endswith(".") or set(text) & set("{}%")] == []
    sentences = [part for row in rows for part in (row.meaning, row.fix) if part]
    assert [text for text in sentences if not text.endswith(".") or text[:1].islower()] == []
    assert [row.text for row in rows if not row.meaning or (row.level == "error" and not row.fix)] == []


def test_every_metric_is_declared_and_used(product: list[Any]) -> None:
    """No service counts what is not in the table, and nothing stands there that no service counts."""
    used_names: set[str] = set()
    for source in product:
        if not source.name.startswith(f"{TABLES}metrics"):
            texts = (node.value for node in nodes_of(source.tree) if isinstance(node, ast.Constant))
            used_names |= {text for text in texts if isinstance(text, str) and text.startswith("sandherd_")}
    declared = {metric.name for metric in METRICS}
    packages = {"sandherd_worker", "sandherd_drivers"}
    assert {name for name in used_names if name.count("_") > 1 and "." not in name} - declared - packages == set()
    assert declared - used_names == set()


def test_every_span_is_recorded(product: list[Any]) -> None:
    """A span of the table is begun or recorded somewhere, and no service makes one in another way."""
    texts = {source.name: source.text for source in product if not source.name.startswith(TABLES)}
    rows = {name for name, value in vars(spans).items() if isinstance(value, spans.SpanRow)}
    assert [name for name in rows if not any(f"spans.{name}" in text for text in texts.values())] == []
    assert [name for name, text in texts.items() if "start_span(" in text or "start_as_current_span(" in text] == []
