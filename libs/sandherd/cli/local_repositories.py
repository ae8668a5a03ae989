"""Examines the local repositories of tasks before a connection is made, and uploads them."""

import asyncio
from collections.abc import Mapping
from pathlib import Path

from sandherd.cli.status_line import StatusLine
from sandherd.cli.stderr import print_error
from sandherd.client.herd import Herd
from sandherd.client.repositories.local import LocalRepository, examine
from sandherd.client.repositories.source import RepositorySource
from sandherd.client.repository_upload import of_bundle
from sandherd.contracts.repositories import SHARED_BUNDLES, Repository
from sandherd.plurals import pluralize

QUIET_SECONDS = 2.0
"""Seconds after which a terminal shows what git does."""


def examine_local(sources: Mapping[str, RepositorySource | None]) -> dict[str, LocalRepository]:
    """Examine the local repositories of tasks. Returns them by task. Warns of uncommitted changes.

    Raises `HerdError`. Runs its own event loop: no connection is made yet.
    """
    local = {task: source for task, source in sources.items() if source is not None and source.is_local}
    return asyncio.run(_examine_each(local)) if local else {}


async def _examine_each(sources: Mapping[str, RepositorySource]) -> dict[str, LocalRepository]:
    examined: dict[RepositorySource, LocalRepository] = {}
    with StatusLine("reading the repository", quiet=QUIET_SECONDS):
        for source in dict.fromkeys(sources.values()):
            examined[source] = await examine(source)
    for top, count in {local.top: local.uncommitted for local in examined.values() if local.uncommitted}.items():
        verb = "is not committed, and not part of what the task gets"
        plural = "are not committed, and not part of what the task gets"
        print_error(f"warning: {pluralize(count, f'change in {top} {verb}', f'changes in {top} {plural}')}")
    return {task: examined[source] for task, source in sources.items()}


async def upload_each(herd: Herd, repositories: Mapping[str, LocalRepository]) -> dict[str, Repository]:
    """Upload the repositories of several tasks, each commit once. Returns the `repository` of each task's spec.

    Raises `HerdError`.
    """
    tasks: dict[tuple[Path, str, str], list[str]] = {}
    for task, repository in repositories.items():
        tasks.setdefault((repository.top, repository.base, repository.commit), []).append(task)
    uploaded: dict[str, Repository] = {}
    for first_task, *other_tasks in tasks.values():
        uploaded[first_task] = await upload(
            herd, SHARED_BUNDLES if other_tasks else first_task, repositories[first_task]
        )
        bundle = uploaded[first_task].bundle
        uploaded |= {task: of_bundle(repositories[task], bundle) for task in other_tasks if bundle is not None}
    return uploaded


async def upload(herd: Herd, task: str, repository: LocalRepository) -> Repository:
    """Upload a repository for a task that is submitted afterwards, and show the progress. Raises `HerdError`."""
    from sandherd.cli.file_copy import ProgressBar  # only needed with files

    name = f"{repository.base} of {repository.label}"
    with StatusLine(f"bundling {name}", quiet=QUIET_SECONDS) as activity, ProgressBar(name) as bar:

        def move(transferred: int, size: int) -> None:
            activity.step("")
            bar.move(transferred, size)

        return await herd.upload_repository(task, repository, on_progress=move)
