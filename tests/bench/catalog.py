"""All groups of figures of `make bench`, in the order in which they are measured."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sandherd.bus.auth.permissions import SERVICES
from tests.bench.figures import FEWEST_RUNS, Direction, Figure


@dataclass(frozen=True)
class Group:
    """Figures that are measured together. `measure` is `module:function`: a coroutine that gets a `Recorder`.

    `fewest_runs` is more than the usual number where the figures vary more.
    """

    name: str
    summary: str
    measure: str
    figures: tuple[Figure, ...]
    fewest_runs: int = FEWEST_RUNS

    def runs(self, wanted: int) -> int:
        """The number of runs, if `wanted` runs are requested."""
        return max(wanted, self.fewest_runs)


class UnknownGroupError(ValueError):
    """A group that does not exist was selected. The message lists the groups."""


def select(only: str | None, groups: Sequence[Group]) -> list[Group]:
    """The groups named in `only`, separated by commas, in the order of the catalog; all groups without it.

    Raises `UnknownGroupError`.
    """
    if only is None:
        return list(groups)
    wanted = {name.strip() for name in only.split(",")} - {""}
    known = {group.name for group in groups}
    if unknown := sorted(wanted - known):
        raise UnknownGroupError(f"no group {', '.join(unknown)}; the groups are: {', '.join(g.name for g in groups)}")
    if not wanted:
        raise UnknownGroupError(f"no group is named; the groups are: {', '.join(g.name for g in groups)}")
    return [group for group in groups if group.name in wanted]


def _figures(prefix: str, unit: str, *names: str, better: Direction = "lower") -> tuple[Figure, ...]:
    return tuple(Figure(f"{prefix}.{name}", unit, better) for name in names)


def _each(name: str) -> tuple[str, ...]:
    """The figures of each kind of flood."""
    return tuple(f"{name}_{kind}" for kind in ("junk", "relay", "events"))


_PARTS: Final = (*(service.value for service in SERVICES), "nats", "postgres", "sandbox")
_RATES: Final[Mapping[str, Direction]] = {"better": "higher"}

GROUPS: Final = (
    Group(
        "idle", "what an idle stack and its sandboxes take", "tests.bench.idle_stack:measure",
        _figures("idle", "MiB, % of a core", *_PARTS),
    ),
    Group(
        "clients", "what the spawner loads for each kind of runtime", "tests.bench.clients:measure",
        _figures("idle", "MiB", "archive", "client_docker", "client_kubernetes", "client_daytona", "client_remote"),
    ),
    Group(
        "ingest", "event-ingest: from publishing to storing", "tests.bench.ingest:measure",
        _figures("ingest", "events/s", "throughput", "postgres_share", **_RATES)
        + _figures("ingest", "ms", "latency_200", "latency_1000"),
    ),
    Group(
        "requests", "requests while another project floods event-ingest", "tests.bench.request_fairness:measure",
        _figures("requests", "ms", "beside_events", "beside_audit", "beside_trajectory"),
    ),
    Group(
        "history", "requests about 200,000 events, and the index of their words", "tests.bench.histories:measure",
        _figures("history", "µs/event", "words")
        + _figures("history", "ms", "comparison", "search", "search_indexed", "statistics", "overview"),
    ),
    Group(
        "room", "what an event takes on disk", "tests.bench.disk_space:measure",
        _figures("room", "bytes/event", "event"),
    ),
    Group(
        "telemetry", "what telemetry costs event-ingest", "tests.bench.telemetry:measure",
        _figures("telemetry", "events/s", "throughput", "throughput_hanging", **_RATES)
        + _figures("telemetry", "µs/event", "cost", "cost_hanging"),
        fewest_runs=5,
    ),
    Group(
        "worker", "what a worker publishes, and takes beside its agent", "tests.bench.worker:measure",
        _figures("worker", "% of a core", "idle_tree") + _figures("worker", "ms", "emit", "emit_redaction", "start")
        + _figures("worker", "events/s", "events", **_RATES) + _figures("worker", "MiB", "memory"),
    ),
    Group(
        "process", "the process runtime", "tests.bench.runtimes:measure_process",
        _figures("runtime.process", "ms", "create", "exec"),
    ),
    Group(
        "docker", "the docker runtime, with an engine of its own (root)", "tests.bench.containers:measure",
        _figures("runtime.docker", "ms", "create", "exec") + _figures("idle", "MiB, % of a core", "spawner_docker"),
    ),
    Group(
        "network", "the network forwarder of a sandbox", "tests.bench.network:measure",
        _figures("network", "MB/s", "throughput", **_RATES) + _figures("network", "ms", "connect", "answer", "start")
        + _figures("network", "MiB", "forwarder"),
    ),
    Group(
        "messages", "from `sandherd send` to the agent", "tests.bench.delivery:measure",
        _figures("message", "ms", "delivery"),
    ),
    Group(
        "gateway", "live events over HTTP, and 1,000 clients of them", "tests.bench.gateway_streams:measure",
        _figures("gateway", "ms", "event") + _figures("gateway", "MiB", "clients")
        + _figures("gateway", "s", "reconnect"),
    ),
    Group(
        "pages", "the pages in a browser, with 10,000 sandboxes and 100,000 events", "tests.bench.pages:measure",
        _figures("pages", "ms", "herd", "diff", "terminal", "event", "session", "frame")
        + _figures("pages", "MiB", "memory"),
    ),
    Group(
        "floods", "another project while a sandbox floods the broker, and afterwards", "tests.bench.flood:measure",
        _figures("floods", "s", *_each("delay"), *_each("after"), "cut_off_junk", "cut_off_events")
        + _figures("floods", "ms", *_each("message_during"), *_each("message_after")),
    ),
    Group(
        "cli", "the CPU time of commands", "tests.bench.commands:measure",
        _figures("cli", "CPU ms", "run", "tasks_list", "events", "logs_follow", "status"),
    ),
    Group(
        "spawn", "from `submit` to the agent's start", "tests.bench.start_latency:measure",
        _figures("spawn", "ms", "start", "start_empty", "start_1000", "warm", "warm_full"),
    ),
    Group(
        "branch", "from `submit` to the agent's start on a branch, and from its end to the pull request",
        "tests.bench.repositories:measure",
        _figures("branch", "ms", "ready", "ready_200mb", "pull_request") + _figures("branch", "requests", "api_calls"),
    ),
    Group(
        "queue", "tasks per second through the queue", "tests.bench.queue_throughput:measure",
        _figures("queue", "tasks/s", "throughput", **_RATES),
    ),
    Group(
        "scheduling", "one scheduling decision, with 10,000 tasks waiting", "tests.bench.scheduling_cost:measure",
        _figures("scheduling", "µs", "decision"),
    ),
    Group(
        "monitor", "the monitor's rules, and how soon it acts", "tests.bench.monitor_rules:measure",
        _figures("monitor", "events/s", "rate", "fold", **_RATES) + _figures("monitor", "µs/event", "cost")
        + _figures("monitor", "KiB/sandbox", "memory") + _figures("monitor", "ms", "decision", "takeover"),
    ),
    Group(
        "cluster", "without a leader, after its server was killed", "tests.bench.leader_loss:measure",
        _figures("cluster", "s", "lost_leader"), fewest_runs=6,
    ),
)  # fmt: skip
