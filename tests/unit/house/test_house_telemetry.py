"""What is said of itself is declared: every metric, span and log field, and nothing is declared that nobody says."""

import ast
from collections.abc import Iterator
from typing import Any

from sandherd.telemetry import spans
from sandherd.telemetry.fields import ALWAYS, FIELDS, NAMES
from sandherd.telemetry.metrics import METRICS
from sandherd.telemetry.spans import SPANS

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
        for node in ast.walk(source.tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LEVELS:
                spoken = ast.unparse(node.func.value)
                if spoken.endswith("_log") or "logs.get(" in spoken or "get_logger(" in spoken:
                    yield f"{source.name}:{node.lineno}", node


def test_every_log_field_is_declared(product: list[Any]) -> None:
    """A field that a log call names stands in `telemetry.fields`; `**` is allowed for `logs.place` alone."""
    unknown: dict[str, list[str]] = {}
    used: set[str] = set()
    for where, call in log_calls(product):
        named = {keyword.arg for keyword in call.keywords if keyword.arg} - STANDARD
        spread = [ast.unparse(keyword.value) for keyword in call.keywords if keyword.arg is None]
        wrong = [*(named - NAMES), *(value for value in spread if not value.startswith("logs.place("))]
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


def test_the_words_of_a_log_line_do_not_vary(product: list[Any]) -> None:
    """What happened is a constant, so that it can be searched for and counted; what varies is a field."""
    varying = [
        where
        for where, call in log_calls(product)
        if call.args and not all(isinstance(part, ast.Constant | ast.IfExp) for part in call.args)
    ]
    assert varying == []


def test_every_metric_is_declared_and_used(product: list[Any]) -> None:
    """No service counts what is not in the table, and nothing stands there that no service counts."""
    said: set[str] = set()
    for source in product:
        if not source.name.startswith(f"{TABLES}metrics"):
            texts = (node.value for node in ast.walk(source.tree) if isinstance(node, ast.Constant))
            said |= {text for text in texts if isinstance(text, str) and text.startswith("sandherd_")}
    declared = {metric.name for metric in METRICS}
    packages = {"sandherd_worker", "sandherd_drivers"}
    assert {name for name in said if name.count("_") > 1 and "." not in name} - declared - packages == set()
    assert declared - said == set()


def test_every_span_is_told(product: list[Any]) -> None:
    """A span of the table is begun or recorded somewhere, and no service makes one in another way."""
    texts = {source.name: source.text for source in product if not source.name.startswith(TABLES)}
    rows = {name for name, value in vars(spans).items() if isinstance(value, spans.SpanRow)}
    assert [name for name in rows if not any(f"spans.{name}" in text for text in texts.values())] == []
    assert [name for name, text in texts.items() if "start_span(" in text or "start_as_current_span(" in text] == []
