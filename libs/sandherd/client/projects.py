"""Checks whether a project is in use, so that a mistyped name is noticed."""

from typing import Any, Final

from sandherd.client.errors import HerdError
from sandherd.client.queries import SendRequest
from sandherd.contracts.errors import Code
from sandherd.contracts.requests import (
    ListEvents,
    ListLiveSandboxes,
    ListLiveTasks,
    ListPastSandboxes,
    ListPastTasks,
    ListProjects,
    ListSchedules,
    ListSecrets,
    ListSubscriptions,
    Request,
)

CHECK_SECONDS: Final = 2.0
"""The timeout of each request."""
_CONTENTS: Final[tuple[tuple[Request[Any], str], ...]] = (
    (ListLiveTasks(limit=1), "tasks"),
    (ListPastTasks(limit=1), "tasks"),
    (ListLiveSandboxes(limit=1), "sandboxes"),
    (ListPastSandboxes(limit=1), "sandboxes"),
    (ListEvents(limit=1), "events"),
    (ListSecrets(), "secrets"),
    (ListSubscriptions(), "subscriptions"),
    # These are last: credentials that were created before these requests existed have no permission for them.
    (ListProjects(), "recorded"),
    (ListSchedules(), "schedules"),
)
"""Requests for everything that a project may contain, each with the field of the reply that is not empty then."""
_NO_REPLY_CODES: Final = frozenset({Code.UNAVAILABLE, Code.BUSY, Code.INTERNAL})


async def require_project(send: SendRequest, project: str) -> None:
    """Raise `HerdError` (`not_found`) if the project has no task, sandbox, event, secret, subscription or schedule.

    A project that has a record, with its limits or defaults, exists, too. If a service does not reply, the project may
    exist, and nothing is raised.
    """
    for request, field in _CONTENTS:
        try:
            reply = await send(request, timeout=CHECK_SECONDS)
        except HerdError as error:
            if error.problem.code in _NO_REPLY_CODES:
                return
            raise
        if getattr(reply, field):
            return
    raise HerdError.of(
        Code.NOT_FOUND,
        f"there is no project {project}",
        field="project",
        remedy="check its name, or create it with --create, as in `sandherd run --project NAME --create …`",
    )
