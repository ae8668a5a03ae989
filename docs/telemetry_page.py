"""The page of telemetry: all metrics, labels, spans, attributes and log fields, as the code declares them."""

from collections.abc import Iterable, Iterator
from typing import Final

from pages import EMPTY, Row, code, page, table

from sandherd.telemetry.fields import ALWAYS, FIELDS, Field
from sandherd.telemetry.labels import OTHER, Label
from sandherd.telemetry.log_message import LogMessage
from sandherd.telemetry.messages import MESSAGES
from sandherd.telemetry.metrics import BORROWED, GROUPS, METRICS, Metric
from sandherd.telemetry.spans import SPANS, Attribute, SpanRow

MOST_SHOWN: Final = 12
"""Maximum number of values of a label that are listed. If there are more, only their number is shown."""
HEAD: Final = """\
Each service serves its metrics at `/metrics`, its liveness at `/healthz` and its readiness at `/readyz`.
If `OTEL_EXPORTER_OTLP_ENDPOINT` names a collector (OTLP over HTTP), each service exports its spans when they end, and
all of its metrics every minute (`OTEL_METRIC_EXPORT_INTERVAL`, in milliseconds), under the same names. A collector that
is unavailable or does not respond delays nothing. Telemetry that it does not accept is dropped, counted in
`sandherd_exports_total` and logged once. A service that ends waits for the collector for at most two seconds. The other
variables of OpenTelemetry's exporters have an effect, too, such as `OTEL_EXPORTER_OTLP_HEADERS` for a key. The
attributes of the resource are `service.name` (`sandherd-<service>`) and `service.version`. Units are those of UCUM.
"""
MESSAGES_HEAD: Final = """\
The field `event` of a log line is one of these texts. The texts are constant, so you can search for them and alert on
them.
"""
LABELS_HEAD: Final = f"""\
A label can only have the values in this table, or `{OTHER}`. Ids, subjects and texts of agents are never values of
labels, so the number of series is always limited. Ids are in spans and logs. Only the metrics of subscriptions have
names as labels, and each of these metrics has at most 100 series.
"""
METRICS_HEAD: Final = """\
Gauges that only the holder of a lease knows (tasks, sandboxes, the pool) are exposed by this replica only, or by two
replicas for a short time when the lease changes its holder. Values from the broker (streams, consumers, the lag) are
the same in every replica. Use the maximum of both kinds of gauges within one herd, and sums only for counters.
"""
SPANS_HEAD: Final = """\
A task has one trace, from its submission to the last event about it:

```text
task
├── handle spawner.submit_task, store task.submitted, …
└── sandbox
    ├── sandbox spawn, sandbox stop, …
    └── invoke_agent claude
        ├── handle agent.started, …
        ├── chat claude-…              (from the agent's events)
        ├── execute_tool Bash
        └── claude_code.…              (the agent's own)
```

If a program submits a task within a trace, the task becomes part of that trace. Any other task begins a new trace. Each
event of the task has the trace (`traceparent`), and so has each log line that is written while one is handled. Spans of
tasks, sandboxes and agents are exported when they end. Until then, the parents of their child spans are missing.

Spans of agents follow OpenTelemetry's conventions for generative AI (`gen_ai.*`). event-ingest creates them from stored
events, because a sandbox connects only to the broker. It exports at most 100 of them per second, and counts the others
in `sandherd_spans_spared_total`. To export one complete trace in ten, set `OTEL_TRACES_SAMPLER=traceidratio` and
`OTEL_TRACES_SAMPLER_ARG=0.1` for every service.

A request is not part of the trace of a task, so its span is a separate trace. Spans of two kinds of requests are always
exported: requests that take longer than a second, and requests that fail because of the service (`internal` and
`unavailable`, but no other refusal). Of the other requests, one in a hundred is exported; `SANDHERD_TRACED_REQUESTS`
sets this share, from 0 to 1. All requests are in the metrics.

If sandboxes may connect to a collector, `SANDHERD_SANDBOX_OTLP_ENDPOINT` names it. Agents get it in OpenTelemetry's
variables, with the trace (`TRACEPARENT`). The Claude CLI then exports its own spans, metrics and logs into the same
trace.
"""


def telemetry() -> str:
    """The page."""
    return page(
        "Telemetry",
        "libs/sandherd/telemetry",
        HEAD,
        *metrics(),
        "## Labels\n",
        LABELS_HEAD,
        table(("label", "of", "meaning", "values"), labels()),
        "## Spans\n",
        SPANS_HEAD,
        table(("span", "exported by", "kind", "meaning", "attributes"), map(span_row, SPANS)),
        "### Attributes\n",
        table(("attribute", "meaning"), ((code(a.name), a.meaning) for a in attributes())),
        "## Log fields\n",
        "A log line is one JSON object on standard error. Every line has these fields:\n",
        table(("field", "unit", "meaning"), map(field_row, ALWAYS)),
        "Lines to which they apply also have these fields:\n",
        table(("field", "unit", "meaning"), map(field_row, FIELDS)),
        *messages(),
    )


def metrics() -> Iterator[str]:
    """A table for each service."""
    yield "## Metrics\n"
    yield METRICS_HEAD
    for service, rows in GROUPS.items():
        yield f"### {service}\n"
        yield table(("metric", "kind", "unit", "labels", "meaning"), map(metric_row, rows))
    yield "Every service also exposes metrics of prometheus-client:\n"
    yield table(("metric", "unit"), ((code(name), unit) for name, unit in BORROWED.items()))


def messages() -> Iterator[str]:
    """A table of log messages for each part of the product."""
    yield "## Log messages\n"
    yield MESSAGES_HEAD
    for part, rows in MESSAGES.items():
        yield f"### Log messages: {part}\n"
        yield table(("level", "message", "meaning", "what to do"), map(message_row, rows))


def message_row(message: LogMessage) -> Row:
    """A row of such a table."""
    return message.level, code(message.text), message.meaning, message.fix or EMPTY


def metric_row(metric: Metric) -> Row:
    """A row of such a table."""
    named = ", ".join(code(label.name) for label in metric.labels)
    return code(metric.name), metric.kind, metric.unit, named, metric.meaning


def labels() -> Iterator[Row]:
    """All labels, with the metrics that have them."""
    found: dict[tuple[str, str], tuple[Label, list[str]]] = {}
    for metric in METRICS:
        for label in metric.labels:
            found.setdefault((label.name, label.meaning), (label, []))[1].append(metric.name)
    for label, names in found.values():
        allowed = "names" if label.named else values(label.values)
        yield code(label.name), ", ".join(map(code, names)), label.meaning, allowed


def values(given: Iterable[str]) -> str:
    """The values, or their number and the first three."""
    known = sorted(given)
    if len(known) <= MOST_SHOWN:
        return ", ".join(map(code, known))
    return f"{len(known)}: {', '.join(map(code, known[:3]))}, …"


def span_row(row: SpanRow) -> Row:
    """A row of the spans."""
    return code(row.name), row.by, row.kind, row.meaning, ", ".join(code(a.name) for a in row.attributes)


def attributes() -> Iterator[Attribute]:
    """All attributes, each once."""
    yield from dict.fromkeys(attribute for row in SPANS for attribute in row.attributes)


def field_row(field: Field) -> Row:
    """A row of the log fields."""
    return code(field.name), field.unit or EMPTY, field.meaning
