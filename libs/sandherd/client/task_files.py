"""Files of tasks, also after their sandboxes have ended, and other artifacts that events refer to."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

from sandherd.client import queries
from sandherd.client.errors import HerdError, checked_name, validated
from sandherd.client.sandboxes.operations import SandboxOperations
from sandherd.contracts import requests
from sandherd.contracts.errors import Code
from sandherd.contracts.subjects import ARTIFACT
from sandherd.lazy_imports import LazyModule

if TYPE_CHECKING:
    from sandherd.client import artifacts, file_history, repository_upload, task_work
    from sandherd.client.artifacts import EventArtifact
    from sandherd.client.file_history import FileContent
    from sandherd.client.repositories import local, source
    from sandherd.client.repositories.local import LocalRepository
    from sandherd.client.repositories.source import RepositorySource
    from sandherd.client.sandboxes import transfer
    from sandherd.client.sandboxes.transfer import OnTransfer
    from sandherd.client.task_work import LeftOut
    from sandherd.client.tasks import resume
    from sandherd.client.work_source import WorkSource
    from sandherd.contracts.commands import TaskSpec
    from sandherd.contracts.events import ArtifactRef
    from sandherd.contracts.repositories import ProjectRepository, Repository
else:  # on first use: most programs transfer no files
    artifacts = LazyModule("sandherd.client.artifacts")
    file_history = LazyModule("sandherd.client.file_history")
    local = LazyModule("sandherd.client.repositories.local")
    repository_upload = LazyModule("sandherd.client.repository_upload")
    source = LazyModule("sandherd.client.repositories.source")
    task_work = LazyModule("sandherd.client.task_work")
    transfer = LazyModule("sandherd.client.sandboxes.transfer")
    resume = LazyModule("sandherd.client.tasks.resume")

_PAGE_SIZE: Final = 200
"""Maximum number of versions of files in one reply."""


class TaskFiles(SandboxOperations):
    """The methods of `Herd` about files of tasks. Every method raises `HerdError`."""

    async def upload_work(
        self,
        task: str,
        work: "WorkSource",
        *,
        on_progress: "OnTransfer | None" = None,
        left_out: "LeftOut | None" = None,
    ) -> "ArtifactRef":
        """Upload the files that a task begins with. Returns the field `work` of the spec, to submit it afterwards.

        Links that lead out of the folder are left out: `left_out` is called with each, in another thread.
        """
        name, limit = checked_name(task, "task"), await self._max_file_bytes()
        return await task_work.upload_work(
            self.connection, name, work, limit, on_progress=on_progress or transfer.silent, left_out=left_out
        )

    async def upload_repository(
        self,
        task: str,
        repository: "RepositorySource | LocalRepository | str | Path",
        *,
        on_progress: "OnTransfer | None" = None,
    ) -> "Repository":
        """Upload the base branch of a local repository. Returns the field `repository` of the spec.

        Uncommitted changes are not uploaded. For a repository with a URL, nothing is uploaded. A `RepositorySource`
        without URL and path is the default repository of the project.
        """
        name = checked_name(task, "task")
        if not isinstance(repository, local.LocalRepository):
            repository_source = source.source_of(repository)
            if repository_source.is_default:
                return repository_source.of_default(await self._default_repository(), self.connection.project)
            if not repository_source.is_local:
                return repository_source.of_url()
            repository = await local.examine(repository_source)
        limit = await self._max_file_bytes()
        return await repository_upload.upload(self.connection, name, repository, limit, on_progress or transfer.silent)

    async def _default_repository(self) -> "ProjectRepository | None":
        """The project's default repository, if it has one."""
        reply = await self.connection.request(requests.ListProjects())
        views = [view for view in reply.projects if view.project == self.connection.project]
        return views[0].defaults.repository if views else None

    async def fetch_result(self, task: str, out: IO[bytes], *, on_progress: "OnTransfer | None" = None) -> None:
        """Write the stored work tree of a task, a compressed tar archive, into an empty file."""
        name = checked_name(task, "task")
        sandbox, work = await resume.stored_work(self.connection.request, name)
        await transfer.fetch(self.connection, sandbox, work, out, on_progress or transfer.silent)

    async def fetch_start(self, task: str, out: IO[bytes], *, on_progress: "OnTransfer | None" = None) -> bool:
        """Write the archive of the files that a task began with into an empty file. Returns False if it had none.

        The files are stored as long as the record of the task. Later, raises `HerdError` (`not_found`).
        """
        name = checked_name(task, "task")
        work = await resume.submitted_work(self.connection.request, name)
        if work is None:
            return False
        try:
            await transfer.fetch(self.connection, name, work, out, on_progress or transfer.silent)
        except HerdError as error:
            if error.problem.code is not Code.NOT_FOUND:
                raise
            raise _start_deleted_error(name) from None
        return True

    async def artifact(
        self, reference: "ArtifactRef", out: IO[bytes], *, on_progress: "OnTransfer | None" = None
    ) -> None:
        """Write an artifact that an event of this project refers to into an empty file. Verifies its size and SHA-256.

        `reference` is a value of the event's `artifacts`, or of another field of this type. Raises `HerdError`:
        `invalid_field` if the reference is of another project or not of an artifact, `not_found` if the artifact is no
        longer stored.
        """
        owner = _artifact_owner(reference, self.connection.project)
        await transfer.fetch(self.connection, owner, reference, out, on_progress or transfer.silent)

    async def file_versions(
        self, sandbox: str, path: str | None = None, *, diffs: bool = False
    ) -> "AsyncIterator[requests.FileVersion]":
        """The versions of files that the agent in a sandbox has changed, or of one file, in order of the changes."""
        name = checked_name(sandbox, "sandbox")
        question = validated(requests.ListFileVersions, sandbox=name, file_path=path, diffs=diffs, limit=_PAGE_SIZE)
        async for page in queries.pages(self.connection.request, question):
            for version in page.versions:
                yield version

    async def file_version(self, sandbox: str, path: str, number: int | None = None) -> "FileContent":
        """A version of a file, by default the last: its diff, and its content if the sandbox has created it."""
        versions = [version async for version in self.file_versions(sandbox, path, diffs=True)]
        return await file_history.FileHistory(versions, self._diff_of).at(number)

    async def _diff_of(self, version: "requests.FileVersion") -> str | None:
        return await file_history.diff_of(version, self.artifact)

    async def _with_repository(
        self, task: str, spec: "TaskSpec", repository: "RepositorySource | LocalRepository | str | Path"
    ) -> "TaskSpec":
        """The spec with the repository, which is uploaded if it is local."""
        if spec.work is not None or spec.resume is not None or spec.repository is not None:
            raise HerdError.of(
                Code.INVALID_FIELD,
                "a task that begins with a repository can't also begin with work, resume or another repository",
                field="repository",
                remedy="leave one of them out",
            )
        uploaded = await self.upload_repository(task, repository)
        return spec.model_copy(update={"repository": uploaded})

    def artifacts(self, *, task: str | None = None, sandbox: str | None = None) -> "AsyncIterator[EventArtifact]":
        """The artifacts that events of a task and its sandboxes, or of one sandbox, refer to, oldest first."""
        return artifacts.artifacts(self.connection.request, _artifact_scope(task, sandbox))

    async def find_artifact(self, name: str, *, task: str | None = None, sandbox: str | None = None) -> "EventArtifact":
        """The artifact of this name that an event of the task, of the sandbox, or else of the project refers to.

        In a project, only events near the time in a generated name are searched. Raises `HerdError` (`not_found`).
        """
        return await artifacts.find_artifact(
            self.connection.request, checked_name(name, "artifact"), _artifact_scope(task, sandbox)
        )


def _artifact_scope(task: str | None, sandbox: str | None) -> "artifacts.ArtifactScope":
    return artifacts.ArtifactScope(
        task=None if task is None else checked_name(task, "task"),
        sandbox=None if sandbox is None else checked_name(sandbox, "sandbox"),
    )


def _artifact_owner(reference: "ArtifactRef", project: str) -> str:
    """The sandbox or task under whose name an artifact is stored.

    Raises `HerdError` for an invalid reference, because a sandbox may have written anything into its event.
    """
    names = ARTIFACT.match(reference.subject)
    if names is None or names["project"] != project or names["artifact"] != reference.artifact:
        raise HerdError.of(
            Code.INVALID_FIELD,
            f"{reference.subject[:120]!r} is not the subject of an artifact of project {project}",
            field="subject",
            remedy="use a reference from an event of this project",
        )
    checked_name(reference.artifact, "artifact")
    return checked_name(names["sandbox"], "subject")


def _start_deleted_error(task: str) -> HerdError:
    return HerdError.of(
        Code.NOT_FOUND,
        f"the files that {task} began with are no longer stored (SANDHERD_KEEP_ENDED)",
        field="task",
        remedy=f"copy the files at its end: `sandherd cp -r {task}:. DST`",
    )
