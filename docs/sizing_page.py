"""The page of sizing, from the figures that were measured and kept in docs/measured.json."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from pages import Row, code, page, table

from sandherd.contracts.streams import BUCKETS, STREAMS

MEASURED: Final = Path(__file__).parent / "measured.json"
SERVICES: Final = ("spawner", "event-ingest", "monitor", "message-relay")
_DAY: Final = 86_400
BUSY: Final = 100
"""Events a second of a herd that is well at work."""

Figures = Mapping[str, Mapping[str, Any]]


def sizing() -> str:
    """The whole page."""
    kept = json.loads(MEASURED.read_text(encoding="utf-8"))
    figures: Figures = kept["figures"]
    return page(
        "Sizing",
        "docs/measured.json",
        HEAD.format(**kept["machine"]),
        "## With nothing to do\n",
        table(("part", "MiB", "MiB alone", "% of a core", "measured"), map(idle(figures), (*SERVICES, *OTHERS))),
        IDLE,
        table(("runtime", "MiB more in the spawner", "alone, in all", "measured"), map(client(figures), CLIENTS)),
        CLIENT.format(archive=figures["idle.archive"]["value"]["MiB"]),
        "## For each sandbox\n",
        table(("what", "takes", "measured"), sandbox(figures)),
        SANDBOX,
        "## What goes through\n",
        table(("what", "figure", "measured"), through(figures)),
        "## On disk\n",
        disk(figures),
    )


HEAD: Final = """\
Measured with `make bench` on a machine with {cores} cores ({machine}) and {memory_gib} GiB, on which broker, database,
services and the measuring programs ran together; Python {python}, nats-server {nats_server}, Postgres {postgres}.
`make sizing` measures anew and writes this page. Take the figures for the order of size, and your own for the rest:
every one of them is in [telemetry.md](telemetry.md), too.
"""
OTHERS: Final = ("spawner_docker", "nats", "postgres", "sandbox")
CALLED: Final = {"spawner_docker": "spawner, when it has made containers"}
IDLE: Final = """\
*MiB* counts once what several processes share, *alone* as if each were on a machine of its own: that is what a
container takes. A service of ours is to stay below 80 MiB and 1 % of a core; the chart asks for more, as it works, too.
`sandbox` is one without a task: its worker, and what holds it.
"""
CLIENTS: Final = ("docker", "kubernetes", "daytona", "remote")
CLIENT: Final = """\
That is what is loaded of a provider's client where this runtime is set; the first line of the table before has none of
it. What is above 80 MiB in all is so for that client. Another {archive} MiB are kept by a spawner that has brought its
worker to sandboxes of `kubernetes`, `daytona` or `remote`, as it does where their image lacks it.
"""
SANDBOX: Final = """\
The agent comes on top, and is the larger part: [harnesses.md](harnesses.md). A sandbox is given at most what its limits
say (`--memory`, `--cpus`), so that `SANDHERD_MAX_SANDBOXES` times the memory of one is what sandboxes may take in all.
"""


DISK: Final = """\
An event takes {stream} bytes in its stream and {postgres} bytes in Postgres, indexes included. At a steady {busy}
events/s Postgres grows by {a_day:.1f} GiB a day; nothing of the history is removed by itself. `EVENTS` holds 8 GiB,
which are {days:.1f} days of that, and gives up what is stored before it is full. With every stream at its limit
([subjects.md](subjects.md)) the broker's disk holds {full:.0f} GiB on each server.
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
    """What one takes."""
    memory, events = figures["worker.memory"], figures["worker.events"]
    yield "its worker, beside an agent that has said 300 things", f"{memory['value']['now']} MiB", memory["on"]
    yield "the most that the worker brings up", f"{events['value']:,} events/s", events["on"]


def through(figures: Figures) -> Iterator[Row]:
    """What the parts of a herd get through."""
    stored, queued = figures["ingest.throughput"], figures["queue.throughput"]
    yield "events stored, by one event-ingest", f"{stored['value']:,} events/s", stored["on"]
    for pace in (200, 1000):
        one = figures[f"ingest.latency_{pace}"]
        yield f"from said to stored, at {pace} events/s", spread(one["value"]), one["on"]
    yield "tasks begun and ended, by one spawner", f"{queued['value']} tasks/s", queued["on"]
    for name, says in (
        ("spawn.start", "from `submit` to the agent's start"),
        ("message.delivery", "a message to an agent"),
    ):
        yield says, spread(figures[name]["value"]), figures[name]["on"]


def spread(value: Mapping[str, float]) -> str:
    """A latency."""
    return f"{value['p50']:g} ms, 99th percentile {value['p99']:g} ms"


def disk(figures: Figures) -> str:
    """What events take, and what follows from it."""
    one = figures["room.event"]["value"]
    days = 8192 * 2**20 / (one["stream"] * BUSY * _DAY)
    full = sum(kept.max_bytes for kept in (*STREAMS, *BUCKETS)) / 2**30
    a_day = one["postgres"] * BUSY * _DAY / 2**30
    return DISK.format(**one, full=full, days=days, a_day=a_day, busy=BUSY)
