"""The parts of a running spawner, their shared dependencies, and the part that handles each request."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sandherd.bus.consumers.consumer import Delivery, Outcome
from sandherd.bus.identity import Minter
from sandherd.bus.lease import Lease
from sandherd.contracts.requests import (
    DeleteSecret,
    GetCredential,
    GetSubmittedTask,
    ListLiveSandboxes,
    ListLiveTasks,
    ListSecrets,
    Prune,
    Request,
    SetSecret,
)
from sandherd.service.requests import Answerer
from sandherd.settings import Settings
from spawner.access import request_handlers as access
from spawner.access_tokens import request_handlers as access_tokens
from spawner.access_tokens import sessions
from spawner.commands import Commands
from spawner.live_state import Clock, LiveState
from spawner.named_secrets import webhook_secrets
from spawner.named_secrets.request_handlers import SecretRequestHandler
from spawner.pool.pool import Pool
from spawner.projects import request_handlers as projects
from spawner.pull_requests import request_handlers as pull_requests
from spawner.repositories import request_handlers as branches
from spawner.runtimes.contract import Runtime
from spawner.sandboxes.admission import Admission
from spawner.sandboxes.credentials import Credentials
from spawner.sandboxes.prune_handler import PruneHandler
from spawner.sandboxes.reconciler import SandboxReconciler
from spawner.schedules import request_handlers as schedules
from spawner.spec_resolution import SpawnPolicy
from spawner.tasks.agent_events import AgentEventHandler
from spawner.tasks.live_queries import LiveQueries
from spawner.tasks.task_queue import TaskQueue

OpenRuntimes = Callable[[Settings], Awaitable[Sequence[Runtime]]]
"""Opens the runtimes once the service runs; each is closed when the service ends."""


@dataclass(frozen=True)
class SpawnerOptions:
    """Start options that are not settings."""

    open_runtimes: OpenRuntimes
    clock: Clock
    lease_seconds: float


@dataclass(frozen=True)
class Core:
    """Dependencies shared by the parts of a running spawner."""

    live: LiveState
    lease: Lease
    """Needed to reconcile sandboxes, to sweep, and to fill the pool."""
    minter: Minter
    runtimes: Mapping[str, Runtime]
    policy: SpawnPolicy
    queue: TaskQueue
    admission: Admission
    pool: Pool
    reconciler: SandboxReconciler


ANSWERED: Final[Mapping[type[Request[Any]], int]] = {
    **dict.fromkeys(
        (
            GetCredential,
            ListLiveTasks,
            ListLiveSandboxes,
            GetSubmittedTask,
            Prune,
            SetSecret,
            ListSecrets,
            DeleteSecret,
        ),
        1,
    ),
    **projects.ANSWERED,
    **branches.ANSWERED,
    **pull_requests.ANSWERED,
    **dict.fromkeys(schedules.ANSWERED, 1),
    **access.ANSWERED,
    **access_tokens.ANSWERED,
    **sessions.ANSWERED,
    **webhook_secrets.ANSWERED,
}
"""The requests that the spawner handles, and the maximum of each that a replica handles concurrently."""


@dataclass(frozen=True)
class Parts:
    """The handlers of all incoming messages. `answers` has one for each request in `ANSWERED`."""

    read: Callable[[], Awaitable[None]]
    """Returns once the records are read: before that, replies would be incomplete and commands would find no record."""
    command: Callable[[Delivery], Awaitable[Outcome]]
    agent: Callable[[Delivery], Awaitable[Outcome]]
    answers: Mapping[type[Request[Any]], Answerer]


def make_parts(
    *,
    read: Callable[[], Awaitable[None]],
    commands: Commands,
    agents: AgentEventHandler,
    credentials: Credentials,
    queries: LiveQueries,
    pruning: PruneHandler,
    secrets: SecretRequestHandler,
    others: Mapping[type[Request[Any]], Answerer],
) -> Parts:
    """Assign a handler to each message. `others` are the handlers of all other requests in `ANSWERED`."""
    return Parts(
        read=read,
        command=commands.handle,
        agent=agents.handle,
        answers={
            GetCredential: credentials.grant,
            ListLiveTasks: queries.tasks,
            ListLiveSandboxes: queries.sandboxes,
            GetSubmittedTask: queries.submitted,
            Prune: pruning.prune,
            SetSecret: secrets.set_secret,
            ListSecrets: secrets.list_secrets,
            DeleteSecret: secrets.delete_secret,
            **others,
        },
    )
