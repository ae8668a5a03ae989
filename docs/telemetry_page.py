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
If `OTEL_EXPORTER_OTLP_ENDPOINT` names a collector (OTLP over HTTP), it exports spans as they end and all of its
metrics every minute (`OTEL_METRIC_EXPORT_INTERVAL`, in milliseconds), under the same names. A collector that is down
or hangs delays nothing: what it does not accept is dropped, counted in `sandherd_exports_total` and logged once, and a
service that ends waits for it at most two seconds. The other variables of OpenTelemetry's exporters apply as well, such
as `OTEL_EXPORTER_OTLP_HEADERS` for a key. The resource is `service.name`, `sandherd-<service>`, with
`service.version`; units are of UCUM.
"""
MESSAGES_HEAD: Final = """\
The field `event` of a log line is one of these texts. They are constant: search for them, and alert on them.
"""
LABELS_HEAD: Final = f"""\
A label has only these values and `{OTHER}`: no id, no subject, no text of an agent becomes one, so the number of series
is always limited. Ids are in spans and logs. Names are labels of the metrics of subscriptions alone, which have at most
100 series each.
"""
METRICS_HEAD: Final = """\
A gauge that only the holder of a lease knows (tasks, sandboxes, the pool) is exposed by that replica alone,
and briefly by two when the lease changes its holder; values from the broker (streams, consumers, the lag) are the same
in every replica. Of both use the maximum, within one herd: sums are for counters.
"""
SPANS_HEAD: Final = """\
One trace goes from a task's submission to the last event about it:

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

A task that a program submits within a trace of its own becomes part of that trace; any other task begins one. The trace
is in every event (`traceparent`) and in every log line written meanwhile. Spans of tasks, sandboxes and agents are
exported when they end: until then their child spans have no visible parent.

Spans of agents follow OpenTelemetry's conventions for generative AI (`gen_ai.*`). The services create them from stored
events, as a sandbox connects only to the broker; at most 100 per second, the rest is counted in
`sandherd_spans_spared_total`. To keep one complete trace in ten, set `OTEL_TRACES_SAMPLER=traceidratio` and
`OTEL_TRACES_SAMPLER_ARG=0.1` for every service.

A request is in no trace of a task, so its span would be a trace by itself. Spans are exported of requests that take
longer than a second or fail by a fault of the service (no refusal but `internal` and `unavailable`), and of one other
request in a hundred: `SANDHERD_TRACED_REQUESTS` is that share, from 0 to 1. All requests are in the metrics.

If sandboxes may reach a collector, `SANDHERD_SANDBOX_OTLP_ENDPOINT` names it, and agents get it in OpenTelemetry's
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
        "A log line is one JSON object on standard error. In every line:\n",
        table(("field", "unit", "meaning"), map(field_row, ALWAYS)),
        "Where they apply:\n",
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
