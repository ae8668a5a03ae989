"""Small files, short functions: the budgets of CONTRIBUTING."""

from statistics import quantiles
from typing import Any

USUAL_LINES = 250
MOST_LINES = 400
LARGE = {
    "libs/sandherd/bus/consumers/held_messages.py": "one class: a message is received, handled and answered here",
    "libs/sandherd/bus/connection.py": "one class, with the errors it raises",
    "libs/sandherd/service/service.py": "everything a service declares, and the order of its start and stop",
    "libs/sandherd/client/events/follower.py": "one class: what a follower has received, and its next step",
    "libs/sandherd/client/herd.py": "one class: what a client can do",
    "libs/sandherd/client/connection.py": "one class: a client's connection, its own or over that of a service",
    "libs/sandherd/contracts/requests/__init__.py": "the exported names, twice: for type checkers, and by module",
    "libs/sandherd/client/sandboxes/operations.py": "one class: what a client can do with sandboxes",
    "libs/sandherd/cli/commands/run.py": "one command, with one parameter per option",
    "services/spawner/spawner/records/store.py": "one class: how a record is read, written and published",
    "services/spawner/spawner/runtimes/fork_program.py": "one program, which can import no other module of the spawner",
    "services/spawner/spawner/pull_requests/pull_request_transitions.py": "every state change of a pull request",
    "services/spawner/spawner/repositories/checkout_preparer.py": "one class: every step of preparing a checkout",
    "libs/sandherd/cli/commands/sandboxes.py": "one group of commands, with one parameter per option",
    "libs/sandherd/client/terminal_text.py": "the one place that writes to standard output and error",
    "libs/sandherd/telemetry/metrics.py": "one table: every metric",
    "libs/sandherd/telemetry/messages.py": "one table: every log message except the spawner's",
    "services/spawner/spawner/runtimes/docker/provider.py": "one class: every call of a provider, to the Docker Engine",
    "services/spawner/spawner/runtimes/worker_start.py": "one class: all that starts a worker, by exec or fork",
    "services/spawner/spawner/runtimes/isolation.py": "one subject: how a sandbox is isolated, tried, and refused",
    "services/spawner/spawner/runtimes/process.py": "one class: every call of a runtime, to processes of this host",
    "services/spawner/spawner/runtimes/contract.py": "one interface: the calls of a runtime, what they get and return",
    "services/event-ingest/event_ingest/database.py": "one class: every connection to the history's database",
    "services/event-ingest/event_ingest/main.py": "the composition of the service with the most requests",
    "services/spawner/spawner/main.py": "the composition of the service with the most parts",
    "libs/sandherd/bus/auth/permissions.py": "the permissions of every principal, derived in one place",
    "libs/sandherd/contracts/streams.py": "one table: every stream, consumer and bucket, and who uses them",
    "libs/sandherd/contracts/events/agent.py": "one subject: every event about the life of an agent",
    "libs/sandherd/settings/model.py": "one model, with one field per setting",
    "libs/sandherd/contracts/specs.py": "one model, a field of a task each, and what has to fit together in it",
    "services/spawner/spawner/forges/gitea.py": "one class: every use of a forge's API",
    "services/spawner/spawner/repositories/branch_transitions.py": "one set: every state change of a branch",
    "services/spawner/spawner/repositories/mirrors.py": "one class: how each part of a checkout gets into a mirror",
    "services/spawner/spawner/repositories/mirror.py": "one class: every use of git on a repository",
    "libs/sandherd/contracts/events/monitor.py": "one domain: every event of the monitor",
    "services/spawner/spawner/sandboxes/flood_limits.py": "one decision: who publishes or connects too much",
    "services/monitor/monitor/interventions.py": "one subject: what happens to an intervention after its decision",
    "libs/sandherd/client/__init__.py": "one list: every exported name, and its module",
    "services/monitor/monitor/normalisation.py": "one table: what differs by chance, and where it is searched for",
    "services/monitor/monitor/rules/error_streak.py": "one rule: its thresholds, its part, its fold and its decision",
    "libs/sandherd/contracts/subjects.py": "one table: every subject, and who publishes and receives its messages",
}
"""Files over the usual size, and why each is one."""


def test_no_file_is_over_the_limit(sources: list[Any]) -> None:
    """No file has more than 400 lines."""
    assert {source.name: source.lines for source in sources if source.lines > MOST_LINES} == {}


def test_a_large_file_has_a_reason(product: list[Any]) -> None:
    """A file of more than 250 lines stands in the list above with its reason, and nothing else stands there."""
    assert {source.name for source in product if source.lines > USUAL_LINES} == LARGE.keys()


def test_functions_are_short(product: list[Any]) -> None:
    """Half of all functions have at most 10 lines, nine of ten at most 30, docstrings counted."""
    lengths = [(function.end_lineno or 0) - function.lineno + 1 for source in product for function in source.functions]
    tenths = quantiles(lengths, n=10)
    assert tenths[4] <= 10
    assert tenths[8] <= 30
