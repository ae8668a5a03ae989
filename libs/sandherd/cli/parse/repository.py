"""The options that name a task's repository."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from sandherd.contracts.pull_request_choices import MergePolicy, PullRequestMode

if TYPE_CHECKING:
    from sandherd.client.repositories.source import RepositorySource
    from sandherd.client.tasks.resume import ResumeSource
    from sandherd.contracts.repositories import CoAuthor, ProjectRepository, Submodules


class SubmodulesChoice(StrEnum):
    """Values of `--submodules`."""

    FALSE = "false"
    TRUE = "true"
    RECURSIVE = "recursive"

    @property
    def field_value(self) -> "Submodules":
        """The value for the field `submodules` of a repository."""
        return "recursive" if self is SubmodulesChoice.RECURSIVE else self is SubmodulesChoice.TRUE


Repo = Annotated[
    str | None,
    typer.Option(
        "--repo",
        metavar="URL|PATH",
        help="Git repository that the task works on: a URL, or a folder of a local repository. The base branch of a "
        "local repository is uploaded without uncommitted changes. The work is saved as commits of a branch "
        "(`sandherd branches`).",
    ),
]
Base = Annotated[
    str | None,
    typer.Option(
        "--base",
        metavar="BRANCH",
        help="Branch to begin from [default: the default branch; for a local repository its current branch].",
    ),
]
TicketOption = Annotated[
    str | None,
    typer.Option("--ticket", metavar="ID", help="Ticket that the task works on; part of the branch's name."),
]
Branch = Annotated[
    str | None,
    typer.Option(
        "--branch", metavar="BRANCH", help="Live branch of an earlier task to continue [default: a new branch]."
    ),
]
Join = Annotated[bool, typer.Option("--join", help="Continue the live branch of the same --ticket, if there is one.")]
NoPush = Annotated[bool, typer.Option("--no-push", help="Do not push the branch until `sandherd branches push`.")]
NoCommitRest = Annotated[
    bool,
    typer.Option("--no-commit-rest", help="Do not commit the changes that the agent leaves uncommitted."),
]
PullRequest = Annotated[
    PullRequestMode | None,
    typer.Option("--pr", help="Pull request of the branch: a draft, or ready for review once the task has completed."),
]
Merge = Annotated[
    MergePolicy | None,
    typer.Option(
        "--merge",
        help="Whether the pull request is merged when checks and reviews permit it. Without --pr it is opened as ready "
        "for review, unless the spawner is configured otherwise.",
    ),
]
SubmodulesOption = Annotated[
    SubmodulesChoice | None,
    typer.Option(
        "--submodules",
        help="Check out the submodules of the repository; recursive: also their own submodules [default: false].",
    ),
]
Lfs = Annotated[
    bool, typer.Option("--lfs", help="Check out the content of files that the repository stores in Git LFS.")
]
GitProxy = Annotated[
    bool | None,
    typer.Option(
        "--git-proxy/--no-git-proxy",
        help="Let git in the sandbox fetch from the repository and push the branch [default: the value of the "
        "project's default repository].",
        show_default=False,
    ),
]
ProjectBase = Annotated[
    str | None, typer.Option("--base", metavar="BRANCH", help="Branch to begin from [default: the default branch].")
]
ProjectGitProxy = Annotated[
    bool | None,
    typer.Option(
        "--git-proxy/--no-git-proxy",
        help="Let git in the sandbox fetch from the repository and push the branch [default: no-git-proxy].",
        show_default=False,
    ),
]
NoRepo = Annotated[
    bool, typer.Option("--no-repo", help="Work without a repository, even if the project has a default repository.")
]
WithCoAuthor = Annotated[
    bool,
    typer.Option(
        "--co-author",
        help="Name the git user of this machine (user.name and user.email) as co-author of the commits. All readers of "
        "the repository see it.",
    ),
]
_OPTIONS: Final = {"url": "--repo", "path": "--repo", "base": "--base", "branch": "--branch", "ticket": "--ticket"}
"""The options that set the fields of a repository."""


def repository_source(  # noqa: PLR0913  # one parameter per option
    repo: str | None,
    *,
    base: str | None,
    ticket: str | None,
    branch: str | None,
    join: bool,
    no_push: bool,
    no_commit_rest: bool,
    submodules: SubmodulesChoice | None = None,
    lfs: bool = False,
    git_proxy: bool | None = None,
    pull_request: PullRequestMode | None = None,
    merge: MergePolicy | None = None,
) -> "RepositorySource | None":
    """The repository that the options name; without `--repo`, the project's default repository with these options.

    None if no option is given. Raises `HerdError`, which names the option.
    """
    from sandherd.client.errors import HerdError, validated
    from sandherd.client.repositories.source import RepositorySource, url_or_path

    other_options = {"--base": base, "--ticket": ticket, "--branch": branch, "--join": join, "--no-push": no_push}
    other_options |= {"--no-commit-rest": no_commit_rest, "--pr": pull_request, "--merge": merge}
    other_options |= {"--submodules": submodules, "--lfs": lfs, "--git-proxy": git_proxy is not None}
    if repo is None and not any(other_options.values()):
        return None
    if lfs and repo is not None and "path" in url_or_path(repo):
        raise _invalid_option("--lfs fetches objects from a forge", "name the repository by its URL")
    if git_proxy and repo is not None and "path" in url_or_path(repo):
        raise _invalid_option("--git-proxy is for a repository at a forge", "name the repository by its URL")
    if join and (branch or not ticket):
        raise _invalid_option("--join continues the branch of a ticket", "name it with --ticket, and omit --branch")
    policies = {"open": pull_request, "merge": merge}
    options: dict[str, Any] = {"pull_request": {name: value for name, value in policies.items() if value} or None}
    options |= {"base": base, "ticket": ticket, "branch": branch, "join": join, "commit_rest": not no_commit_rest}
    options |= {"submodules": submodules is not None and submodules.field_value, "lfs": lfs}
    options["git_proxy"] = git_proxy
    try:
        return validated(
            RepositorySource,
            **(url_or_path(repo) if repo is not None else {}),
            **options,
            push=False if no_push else None,
        )
    except HerdError as error:
        field = error.problem.field or ""
        message = f"{_OPTIONS.get(field, field)}: {error.problem.message.removeprefix(f'{field}: ')}"
        raise HerdError(error.problem.model_copy(update={"message": message})) from None


def co_author(is_requested: bool, repo: str | None) -> "CoAuthor | None":  # noqa: FBT001  # the option's value
    """The git user of a local repository, or of the current folder; None unless `is_requested`. Raises `HerdError`."""
    if not is_requested:
        return None
    import asyncio

    from sandherd.client.errors import HerdError
    from sandherd.client.repositories.git_user import git_user

    folder = Path(repo) if repo is not None and Path(repo).is_dir() else Path()
    try:
        return asyncio.run(git_user(folder))
    except HerdError as error:
        raise HerdError(error.problem.model_copy(update={"message": f"--co-author: {error.problem.message}"})) from None


def project_repository(
    repo: str | None,
    *,
    base: str | None,
    no_push: bool,
    no_commit_rest: bool,
    submodules: SubmodulesChoice | None = None,
    lfs: bool = False,
    git_proxy: bool | None = None,
) -> "ProjectRepository | None":
    """The default repository that the options of a project name; None if no option is given. Raises `HerdError`."""
    from sandherd.client.errors import validated
    from sandherd.contracts.repositories import ProjectRepository

    source = repository_source(
        repo, base=base, ticket=None, branch=None, join=False, no_push=no_push, no_commit_rest=no_commit_rest,
        submodules=submodules, lfs=lfs, git_proxy=git_proxy,
    )  # fmt: skip
    if source is None:
        return None
    if repo is None:
        raise _invalid_option("--base, --lfs and similar options need a repository", "name it with --repo")
    if source.is_local:
        raise _invalid_option("a default repository is named by its URL", "write it as https://HOST/OWNER/NAME")
    fields = {name: getattr(source, name) for name in ("url", "base", "commit_rest", "submodules", "lfs")}
    return validated(ProjectRepository, **fields, push=not no_push, git_proxy=bool(git_proxy))


def refuse_other_trees(
    repository: "RepositorySource | None", directory: Path | None, resume: "ResumeSource | None", *, uploads: bool,
    no_repo: bool = False,
) -> None:  # fmt: skip
    """Raise `HerdError` if options name another source of files than the repository.

    `uploads` is whether the files of `--file` are too large or not text, so that they have to be uploaded.
    """
    if repository is None:
        return
    if no_repo:
        raise _invalid_option("--repo and --no-repo exclude each other", "omit one of them")
    if directory is not None:
        raise _invalid_option("--repo and --dir both name the files that the task begins with", "omit one of them")
    if resume is not None:
        raise _invalid_option(
            "a resumed task begins with the files of the earlier task, and not with a repository",
            "omit --resume, or continue the branch of the earlier task with --repo and --branch",
        )
    if uploads:
        raise _invalid_option(
            "files for a repository's work tree have to be UTF-8 texts of at most 128 KiB in total",
            "commit larger files to the repository",
        )


def _invalid_option(message: str, remedy: str) -> Exception:
    from sandherd.client.errors import HerdError
    from sandherd.contracts.errors import Code

    return HerdError.of(Code.INVALID_FIELD, message, field="repository", remedy=remedy)
