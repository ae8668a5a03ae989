"""The page of sizing, from the measured figures that are stored in docs/measured.json."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from pages import Row, code, page, table

from sandherd.contracts.streams import BUCKETS, STREAMS
from spawner.runtimes.kubernetes.cluster import STALE, WATCH

MEASURED: Final = Path(__file__).parent / "measured.json"
SERVICES: Final = ("spawner", "event-ingest", "monitor", "message-relay")
_DAY: Final = 86_400
BUSY: Final = 100
"""Events per second of a busy herd."""

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
Measured with `make bench` on a machine with {cores} cores ({machine}) and {memory_gib} GiB, on which broker, database,
services and the measuring programs ran together; Python {python}, nats-server {nats_server}, Postgres {postgres}.
`make sizing` repeats the measurements and writes this page. Use the figures for orders of magnitude, and measure your
own herd for more: each of them is in [telemetry.md](telemetry.md), too.
"""
OTHERS: Final = ("spawner_docker", "nats", "postgres", "sandbox")
CALLED: Final = {"spawner_docker": "spawner, after it has created containers"}
IDLE: Final = """\
*MiB* counts memory shared by several processes once, *alone* as if each were on a machine of its own, which is what a
container takes. The target for each service is below 80 MiB and 1 % of a core; the chart requests more, for a service
under load. `sandbox` is one without a task: its worker, and what isolates it.
"""
CLIENTS: Final = ("docker", "kubernetes", "daytona", "remote")
CLIENT: Final = """\
That is the memory of a provider's client, where the runtime is set; the first row of the table above includes none of
it. A total above 80 MiB is due to that client. A spawner holds another {archive} MiB once it has uploaded its worker to
sandboxes of `kubernetes`, `daytona` or `remote`, which it does if their image lacks it.
"""
SANDBOX: Final = """\
The agent's memory is additional, and the larger part: [harnesses.md](harnesses.md). A sandbox gets at most its limits
(`--memory`, `--cpus`), so sandboxes take at most `SANDHERD_MAX_SANDBOXES` times the memory of one.
"""
KUBERNETES: Final = """\
An idle or working sandbox of `kubernetes` causes no periodic requests to the API server: each spawner follows all pods
of a namespace by one watch, and all Sandboxes there by another if sandboxes are created as such, and renews a watch
every {minutes} minutes ({renewals:g} requests/min each, whatever the number of sandboxes). A project with a namespace
of its own adds the watches of that namespace. Requests are made for what happens to a
sandbox: its creation, commands, its end. Once a watch has failed, until the next one has sent a message, the spawner
reads each sandbox and lists all of them at every check (`SANDHERD_CHECK_INTERVAL`) instead. An API server that becomes
silent without closing the connection is noticed after {stale:g} s at most; until then a sandbox is shown as it was.
"""
MONITOR: Final = """\
The first two are measured with real processes beside 1,000 events/s; the takeover includes the time after which the
leases of the killed replica expire. What several replicas cost: [monitor.md](monitor.md#several-replicas).
"""
LARGE: Final = """\
`make bench-history` builds both histories with COPY, over ten days of which the last is today, and asks 100 times each;
the numbers are the 99th percentile in ms. Of the million events of today, 20,000 are in no segment
([history.md](history.md#search)); without segments a search took 2,013 ms, and returned what it had found until then.
"""
DISK: Final = """\
An event takes {stream} bytes in its stream and {postgres} bytes in Postgres, including indexes. At a steady {busy}
events/s Postgres grows by {a_day:.1f} GiB per day; a day is dropped after `SANDHERD_HISTORY_DAYS` (90).
10 million events of 699 bytes took 0.93 times their bytes on disk, 0.21 of it indexes: of an event only what its
columns do not have is stored ([history.md](history.md#storage)). While documents were stored whole it was 1.57.
Postgres compresses no row below 2 kB, whatever its `toast_tuple_target`: with 128 bytes and compression the size was
the same.
`EVENTS` holds 8 GiB, which is {days:.1f} days at that rate; before it is full, events that are stored in Postgres are
removed. With every stream at its limit ([subjects.md](subjects.md)) they take {full:.0f} GiB on each server's disk.
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
    """Requests about a large history beside a small one."""
    one = figures["history.scale"]
    for name, says, target in (
        ("trajectory", "a page of a trajectory", "1.5 times the small one"),
        ("events", "a page of events of some types", "1.5 times the small one"),
        ("audit_sandbox", "the audit of a sandbox", "20 ms"),
        ("audit_project", "the audit of a project", "1,000 ms"),
        ("search", "a search", "300 ms"),
        ("comparison", "the comparison of two sandboxes with 10,000 events each", "300 ms"),
        ("batch", "the slowest of 200 batches of 100 events", ""),
        ("batch_beside_drop", "the slowest while a day of a tenth of the events is dropped", "100 ms"),
        ("stored", "events stored per second, by Postgres alone", ""),
        ("ingested", "the same by event-ingest; the first with an empty database", "90 % of the first"),
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
        ("decision", "from an event to the command that it leads to", "99th percentile at most 50 ms"),
        ("takeover", "from the end of a killed replica to due commands", "99th percentile at most 10,000 ms"),
        ("cost", "CPU per event with 10,000 sandboxes ÷ with 100, all rules on", "at most 1.2"),
        ("rate", "events/s that one process reads from the broker and evaluates ÷ reads only", "at least 0.5"),
        ("fold", "the same without the broker: decoded and evaluated ÷ decoded only", "none"),
        ("memory", "KiB per sandbox", "at most 8"),
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
