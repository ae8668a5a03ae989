"""The page of sizing, from the measured figures that are stored in docs/measured.json."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from pages import Row, code, page, table

from sandherd.contracts.streams import BUCKETS, STREAMS
from spawner.runtimes.kubernetes.cluster import STALE, WATCH

MEASURED: Final = Path(__file__).parent / "measured.json"
SERVICES: Final = ("spawner", "event-ingest", "monitor", "message-relay", "gateway")
_DAY: Final = 86_400
BUSY: Final = 100
"""The events per second of a busy herd."""

Figures = Mapping[str, Mapping[str, Any]]


def sizing() -> str:
    """The whole page."""
    kept = json.loads(MEASURED.read_text(encoding="utf-8"))
    figures: Figures = kept["figures"]
    return page(
        "Sizing",
        "docs/measured.json",
        HEAD.format(**kept["machine"]),
        "## Idle\n",
        table(("part", "MiB", "MiB alone", "% of a core", "measured"), map(idle(figures), (*SERVICES, *OTHERS))),
        IDLE,
        table(("runtime", "additional MiB in the spawner", "alone, total", "measured"), map(client(figures), CLIENTS)),
        CLIENT.format(archive=figures["idle.archive"]["value"]["MiB"]),
        "## Per sandbox\n",
        table(("what", "figure", "measured"), sandbox(figures)),
        SANDBOX,
        KUBERNETES.format(renewals=60 / WATCH, minutes=WATCH // 60, stale=STALE),
        "## Throughput and latency\n",
        table(("what", "figure", "measured"), through(figures)),
        *monitor_section(figures),
        "## A large history\n",
        table(("what", "100,000 events in 20 sandboxes", "10 million in 2,000", "target", "measured"), large(figures)),
        LARGE,
        "## On disk\n",
        disk(figures),
    )


HEAD: Final = """\
The figures were measured with `make bench` on a machine with {cores} cores ({machine}) and {memory_gib} GiB of memory.
The broker, the database, the services and the measuring programs ran on it at the same time, with Python {python},
nats-server {nats_server} and Postgres {postgres}. `make sizing` repeats the measurements and writes this page. The
figures show orders of magnitude. To get figures of your own herd, use its metrics ([telemetry.md](telemetry.md)).
"""
OTHERS: Final = ("spawner_docker", "nats", "postgres", "sandbox")
CALLED: Final = {"spawner_docker": "spawner, after it has created containers"}
IDLE: Final = """\
The column *MiB* counts memory that several processes share only once. The column *MiB alone* is the memory of a part
that shares nothing with others, as in a container. The target for each service is less than 80 MiB and 1 % of a core;
the chart requests more, for a service under load. The row `sandbox` is a sandbox without a task: its worker, and the
processes that isolate it.
"""
CLIENTS: Final = ("docker", "kubernetes", "daytona", "remote")
CLIENT: Final = """\
A spawner with one of these runtimes loads the client of the provider. The first row of the table above does not include
this memory. A total above 80 MiB is due to the client. If an image of `kubernetes`, `daytona` or `remote` lacks the
worker, the spawner uploads it to the sandboxes, and uses another {archive} MiB from then on.
"""
SANDBOX: Final = """\
The agent usually uses more memory than its worker ([harnesses.md](harnesses.md)). A sandbox can't exceed its limits
(`--memory`, `--cpus`). So all sandboxes together use at most `SANDHERD_MAX_SANDBOXES` times the memory limit of one.
"""
KUBERNETES: Final = """\
In the runtime `kubernetes`, a sandbox causes no periodic requests to the API server, whether it is idle or works. Each
spawner follows all pods of a namespace by one watch. If sandboxes are created as `Sandbox` objects, it follows these by
another watch. A spawner renews each watch every {minutes} minutes ({renewals:g} requests/min), whatever the number of
sandboxes. Each namespace of a project needs its own watches. The spawner sends further requests only when it creates a
sandbox, runs a command in it, or ends it. After a watch has failed, and until the next watch has received a message,
the spawner reads each sandbox and lists all of them at every check (`SANDHERD_CHECK_INTERVAL`). If the API server stops
responding without closing the connection, the spawner detects this after at most {stale:g} s. Until then it shows the
last known state of each sandbox.
"""
MONITOR: Final = """\
The first two figures were measured with real processes and a load of 1,000 events/s. The second one includes the time
until the leases of the killed replica expire. [monitor.md](monitor.md#several-replicas) describes the cost of several
replicas.
"""
LARGE: Final = """\
Rows without a unit are in ms. They show the 99th percentile of 100 requests, except the two rows about batches.
`make bench-history` fills both histories by COPY. Each history covers ten days, and the last day is today. Of the
million events of today, 20,000 are in no segment ([history.md](history.md#search)). Without segments, a search ended
after 2,013 ms, and returned only what it had found until then.
"""
DISK: Final = """\
An event takes {stream} bytes in its stream and {postgres} bytes in Postgres, including indexes. At a constant rate of
{busy} events/s, Postgres grows by {a_day:.1f} GiB per day. A day is dropped after `SANDHERD_HISTORY_DAYS` (90).

10 million events of 699 bytes took 0.93 times their size on disk, of which 0.21 were indexes. The size is smaller than
that of the events because values of an event that are in columns are not stored a second time
([history.md](history.md#storage)). With whole events in the table, it was 1.57 times the size of the events. Postgres
does not compress rows of less than 2 kB: with `toast_tuple_target` at 128 bytes and compression, the size was the same.

The stream `EVENTS` has at most 8 GiB, which is {days:.1f} days at that rate. Before it is full, events that are stored
in Postgres are removed from it. If every stream and bucket has its maximum size ([subjects.md](subjects.md)), they take
{full:.0f} GiB on the disk of each server.
"""


def idle(figures: Figures) -> Any:
    """A row of the first table."""

    def row(name: str) -> Row:
        one = figures[f"idle.{name}"]
        value = one["value"]
        return CALLED.get(name, name), value["MiB"], value["alone"], value["cpu"], one["on"]

    return row


def client(figures: Figures) -> Any:
    """A row of the second table."""

    def row(name: str) -> Row:
        one = figures[f"idle.client_{name}"]
        whole = round(figures["idle.spawner"]["value"]["alone"] + one["value"]["MiB"], 1)
        return code(name), one["value"]["MiB"], whole, one["on"]

    return row


def sandbox(figures: Figures) -> Iterator[Row]:
    """Figures of one sandbox."""
    memory, events = figures["worker.memory"], figures["worker.events"]
    yield "memory of its worker, after 300 messages of its agent", f"{memory['value']['now']} MiB", memory["on"]
    yield "maximum rate of the worker", f"{events['value']:,} events/s", events["on"]


def through(figures: Figures) -> Iterator[Row]:
    """Throughput and latency of the parts of a herd."""
    stored, queued = figures["ingest.throughput"], figures["queue.throughput"]
    yield "events stored, by one event-ingest", f"{stored['value']:,} events/s", stored["on"]
    for pace in (200, 1000):
        one = figures[f"ingest.latency_{pace}"]
        yield f"from publishing to storing an event, at {pace} events/s", spread(one["value"]), one["on"]
    yield "tasks started and ended, by one spawner", f"{queued['value']} tasks/s", queued["on"]
    for name, says in (
        ("spawn.start", "from `submit` to the agent's start"),
        ("message.delivery", "delivery of a message to an agent"),
    ):
        yield says, spread(figures[name]["value"]), figures[name]["on"]


def large(figures: Figures) -> Iterator[Row]:
    """Figures of a large history and of a small one."""
    one = figures["history.scale"]
    for name, says, target in (
        ("trajectory", "a page of a trajectory", "1.5 times the small one"),
        ("events", "a page of events of some types", "1.5 times the small one"),
        ("audit_sandbox", "the audit of a sandbox", "20 ms"),
        ("audit_project", "the audit of a project", "1,000 ms"),
        ("search", "a search", "300 ms"),
        ("comparison", "the comparison of two sandboxes with 10,000 events each", "300 ms"),
        ("batch", "storing a batch of 100 events, the slowest of 200", ""),
        ("batch_beside_drop", "the same while a day with a tenth of the events is dropped", "100 ms"),
        ("stored", "events/s that Postgres stores without event-ingest", ""),
        ("ingested", "events/s that event-ingest stores; the first in an empty database", "90 % of the first"),
        ("share", "bytes on disk ÷ bytes of the events", "1.0"),
    ):
        small, big = one["value"][name]
        yield says, f"{small:,}", f"{big:,}", target, one["on"]


def monitor_section(figures: Figures) -> tuple[str, ...]:
    """The figures of the monitor, if there are any."""
    rows = list(monitor(figures))
    shown = table(("what", "figure", "target", "measured"), rows)
    return ("## The monitor\n", shown, MONITOR) if rows else ()


def monitor(figures: Figures) -> Iterator[Row]:
    """The figures of the monitor that have a target, and were measured."""
    for name, says, target in (
        ("decision", "from an event to the resulting command", "99th percentile at most 50 ms"),
        ("takeover", "from the end of a killed replica to due commands", "99th percentile at most 10,000 ms"),
        ("cost", "CPU per event with 10,000 sandboxes ÷ CPU per event with 100, all rules on", "at most 1.2"),
        ("rate", "events/s that one process reads and evaluates ÷ events/s that it only reads", "at least 0.5"),
        ("fold", "the same without the broker: decodes and evaluates ÷ only decodes", "none"),
        ("memory", "KiB of memory per sandbox", "at most 8"),
    ):
        one = figures.get(f"monitor.{name}")
        if one is not None:
            value = one["value"]
            yield says, spread(value) if isinstance(value, Mapping) else f"{value:g}", target, one["on"]


def spread(value: Mapping[str, float]) -> str:
    """A latency."""
    return f"{value['p50']:g} ms, 99th percentile {value['p99']:g} ms"


def disk(figures: Figures) -> str:
    """The disk space of events, and what follows from it."""
    one = figures["room.event"]["value"]
    days = 8192 * 2**20 / (one["stream"] * BUSY * _DAY)
    full = (sum(stream.max_bytes for stream in STREAMS) + sum(bucket.max_bytes for bucket in BUCKETS)) / 2**30
    a_day = one["postgres"] * BUSY * _DAY / 2**30
    return DISK.format(**one, full=full, days=days, a_day=a_day, busy=BUSY)
