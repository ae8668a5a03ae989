"""The page of telemetry: every metric, label, span, attribute and log field, as the code declares them."""

from collections.abc import Iterable, Iterator
from typing import Final

from pages import EMPTY, Row, code, page, table

from sandherd.telemetry.fields import ALWAYS, FIELDS, Field
from sandherd.telemetry.labels import OTHER, Label
from sandherd.telemetry.metrics import BORROWED, GROUPS, METRICS, Metric
from sandherd.telemetry.spans import SPANS, Attribute, SpanRow

MOST_SHOWN: Final = 12
"""Of a label's values; of more, how many there are."""
HEAD: Final = """\
Each service shows its metrics at `/metrics`, and says at `/healthz` that it lives and at `/readyz` that it works.
Where `OTEL_EXPORTER_OTLP_ENDPOINT` names a collector (OTLP over HTTP), it exports spans as they end and all of its
metrics every minute (`OTEL_METRIC_EXPORT_INTERVAL`, in milliseconds), under the same names. A collector that is away
or hangs costs nothing: what it does not take is given up, counted in `sandherd_exports_total` and said once in the
log, and a service that ends waits for it two seconds at the most. The other variables of OpenTelemetry's exporters
hold as well, as `OTEL_EXPORTER_OTLP_HEADERS` for a key.
"""
LABELS_HEAD: Final = f"""\
No label ever has another value than these and `{OTHER}`: no id, no subject, no text of an agent becomes one, so the
number of series is bounded whatever happens. Ids are in spans and logs.
"""
METRICS_HEAD: Final = """\
A gauge of what only the holder of a lease knows (tasks, sandboxes, the pool, the watch) is shown by that replica
alone, and for a moment by two when the lease changes hands; what the broker says (streams, consumers, the lag) is the
same in every replica. Of both take the largest, of one herd: adding up is for counters.
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

A task given by a program that is in a trace of its own is part of that; any other begins one. The trace stands on every
event (`traceparent`) and in every log line written meanwhile. Spans of tasks, sandboxes and agents are told when they
end: until then their parts are there without them.

Spans of agents follow OpenTelemetry's conventions for generative AI (`gen_ai.*`). They are made by the services from
what was stored, as a sandbox speaks to the broker alone; 100 in a second at the most, the rest is counted in
`sandherd_spans_spared_total`. To keep one trace in ten, whole, give every service `OTEL_TRACES_SAMPLER=traceidratio`
and `OTEL_TRACES_SAMPLER_ARG=0.1`.

Where sandboxes may reach a collector, `SANDHERD_SANDBOX_OTLP_ENDPOINT` names it, and agents are given it in the
variables of OpenTelemetry, with the trace (`TRACEPARENT`). The Claude CLI then exports its own spans, metrics and logs
into the same trace.
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
        table(("label", "of", "what it says", "values"), labels()),
        "## Spans\n",
        SPANS_HEAD,
        table(("span", "told by", "kind", "what it is", "attributes"), map(span_row, SPANS)),
        "### Attributes\n",
        table(("attribute", "what it says"), ((code(a.name), a.says) for a in attributes())),
        "## Log fields\n",
        "A log line is one JSON object on standard error. In every line:\n",
        table(("field", "unit", "what it is"), map(field_row, ALWAYS)),
        "Where there is something to say:\n",
        table(("field", "unit", "what it is"), map(field_row, FIELDS)),
    )


def metrics() -> Iterator[str]:
    """A table for each service."""
    yield "## Metrics\n"
    yield METRICS_HEAD
    for service, rows in GROUPS.items():
        yield f"### {service}\n"
        yield table(("metric", "kind", "unit", "labels", "what it is"), map(metric_row, rows))
    yield f"What every Python program shows beside these: {', '.join(map(code, BORROWED))}.\n"


def metric_row(metric: Metric) -> Row:
    """A row of such a table."""
    named = ", ".join(code(label.name) for label in metric.labels)
    return code(metric.name), metric.kind, metric.unit, named, metric.says


def labels() -> Iterator[Row]:
    """Every label, with the metrics that have it."""
    found: dict[tuple[str, str], tuple[Label, list[str]]] = {}
    for metric in METRICS:
        for label in metric.labels:
            found.setdefault((label.name, label.says), (label, []))[1].append(metric.name)
    for label, names in found.values():
        yield code(label.name), ", ".join(map(code, names)), label.says, values(label.values)


def values(given: Iterable[str]) -> str:
    """The values, if they are few."""
    known = sorted(given)
    if len(known) <= MOST_SHOWN:
        return ", ".join(map(code, known))
    return f"{len(known)}: {', '.join(map(code, known[:3]))}, …"


def span_row(row: SpanRow) -> Row:
    """A row of the spans."""
    return code(row.name), row.by, row.kind, row.says, ", ".join(code(a.name) for a in row.attributes)


def attributes() -> Iterator[Attribute]:
    """Every attribute, once."""
    yield from dict.fromkeys(attribute for row in SPANS for attribute in row.attributes)


def field_row(field: Field) -> Row:
    """A row of the log fields."""
    return code(field.name), field.unit or EMPTY, field.says
