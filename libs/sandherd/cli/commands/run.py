"""`sandherd run`: submits a task, and shows its events and output."""

from typing import TYPE_CHECKING, Annotated

import typer

from sandherd.cli.options import (
    AgentServer,
    AnyFiles,
    Cores,
    CreateProject,
    Directory,
    Env,
    Format,
    Image,
    Memory,
    OnRetry,
    Output,
    Priority,
    Profile,
    Project,
    Runtime,
    SecretEnv,
    Secrets,
    TaskKind,
    example,
)
from sandherd.cli.parse.agent_options import (
    Ask,
    Attempt,
    Deny,
    Fork,
    Harness,
    KeepWork,
    Model,
    Resume,
    SessionOnly,
    Set,
    resume_source,
)
from sandherd.cli.parse.constraints import ForbidCommand, ForbidPath, Permit, constraints_of
from sandherd.cli.parse.durations import Linger
from sandherd.cli.parse.iterations import (
    CheckTimeout,
    MaxCost,
    MaxDuration,
    MaxErrors,
    MaxIterations,
    Until,
    UntilSaid,
    continuous,
)
from sandherd.cli.parse.list_options import NewLabels, NewTaskName
from sandherd.cli.parse.repository import (
    Base,
    Branch,
    GitProxy,
    Join,
    Lfs,
    Merge,
    NoCommitRest,
    NoPush,
    NoRepo,
    PullRequest,
    Repo,
    SubmodulesOption,
    TicketOption,
    WithCoAuthor,
    co_author,
    refuse_other_trees,
    repository_source,
)
from sandherd.contracts.failures import ErrorType
from sandherd.contracts.states import SteeringStep

if TYPE_CHECKING:
    from sandherd.client.repositories.local import LocalRepository
    from sandherd.client.repositories.source import RepositorySource

RUN_EXAMPLE = example(
    "sandherd run -- true",
    'sandherd run "Compute C(50, 25)" --file agent.py -- python3 agent.py',
    "sandherd run \"Say hello\" --env NAME=you --no-follow -- sh -c 'echo hello $NAME'",
    'sandherd run "Fix the failing test" --dir . --harness claude --secret-env ANTHROPIC_API_KEY',
    'sandherd run "Fix the failing test" --repo . --harness claude --secret ANTHROPIC_API_KEY=anthropic-key',
    'sandherd run "Fix the login" --repo https://github.com/OWNER/NAME --base main --ticket 42 --harness claude',
    'sandherd run "Tidy up" --harness claude --secret ANTHROPIC_API_KEY=anthropic-key --ask Bash --set max_turns=40',
    'sandherd run "Make the tests pass" --until "make test" --max-iterations 5 --harness claude',
    'sandherd run "Now write the tests" --harness claude --resume task-01kahc5x3tf8b9n2m4r6v8w0ya --fork',
    'sandherd run "Build it" --name build-1 --label team=web --no-follow -- make',
    'sandherd run "Build it" --priority high --attempts 3 --retry-also exit_status --memory 4g -- make',
)


def run(  # noqa: PLR0913  # one parameter per option
    ctx: typer.Context,
    text: Annotated[
        str | None, typer.Argument(metavar="TASK", help="Description of the task [default: the program].")
    ] = None,
    argv: Annotated[
        list[str] | None, typer.Argument(metavar="-- PROGRAM…", help="The program that does the task.")
    ] = None,
    *,
    harness: Harness = None,
    model: Model = None,
    ask: Ask = None,
    deny: Deny = None,
    set_: Set = None,
    runtime: Runtime = None,
    image: Image = None,
    profile: Profile = None,
    memory: Memory = None,
    cores: Cores = None,
    repo: Repo = None,
    base: Base = None,
    ticket: TicketOption = None,
    branch: Branch = None,
    join: Join = False,
    no_push: NoPush = False,
    no_commit_rest: NoCommitRest = False,
    submodules: SubmodulesOption = None,
    lfs: Lfs = False,
    git_proxy: GitProxy = None,
    pr: PullRequest = None,
    merge: Merge = None,
    no_repo: NoRepo = False,
    with_co_author: WithCoAuthor = False,
    directory: Directory = None,
    file: AnyFiles = None,
    env: Env = None,
    secret_env: SecretEnv = None,
    secret: Secrets = None,
    agent_server: AgentServer = False,
    forbid_path: ForbidPath = None,
    forbid_command: ForbidCommand = None,
    permit: Permit = None,
    priority: Annotated[
        Priority, typer.Option("--priority", help="Scheduling priority among pending tasks.")
    ] = Priority.NORMAL,
    budget: Annotated[
        str | None,
        typer.Option(
            "--budget", metavar="LIMITS", help="Limits of its use: cost=2usd,tokens=2m,turns=50,wall_time=2h."
        ),
    ] = None,
    kind: Annotated[
        TaskKind | None,
        typer.Option("--kind", help="The kind of work. Tasks of research and review do not have to change files."),
    ] = None,
    max_intervention: Annotated[
        SteeringStep | None,
        typer.Option("--max-intervention", help="The strongest step of the monitor against bad behaviour."),
    ] = None,
    deadline: Annotated[
        str | None,
        typer.Option(
            "--deadline",
            metavar="WHEN",
            help="When the task should be done, for scheduling: 2h, or ISO 8601.",
        ),
    ] = None,
    depends_on: Annotated[
        list[str] | None,
        typer.Option("--depends-on", metavar="TASK", help="Start after this task has completed; repeatable."),
    ] = None,
    attempts: Annotated[
        int | None, typer.Option("--attempts", metavar="N", help="Maximum number of attempts.", min=1)
    ] = None,
    attempt_timeout: Annotated[
        str | None,
        typer.Option("--attempt-timeout", metavar="TIME", help="Time limit of one attempt: 90s, 10m, 2h."),
    ] = None,
    task_timeout: Annotated[
        str | None,
        typer.Option("--task-timeout", metavar="TIME", help="Time limit of the whole task, including waiting."),
    ] = None,
    retry_also: Annotated[
        list[ErrorType] | None,
        typer.Option(
            "--retry-also", metavar="ERROR", help="Also retry after this error, such as exit_status; repeatable."
        ),
    ] = None,
    on_retry: Annotated[
        OnRetry,
        typer.Option(
            "--on-retry", help="offer: copy the previous work tree next to the new one; restore: start in it."
        ),
    ] = OnRetry.OFFER,
    keep_work: KeepWork = False,
    name: NewTaskName = None,
    labels: NewLabels = None,
    resume: Resume = None,
    resume_attempt: Attempt = None,
    fork: Fork = False,
    session_only: SessionOnly = False,
    until: Until = None,
    until_said: UntilSaid = None,
    check_timeout: CheckTimeout = None,
    max_iterations: MaxIterations = None,
    max_cost: MaxCost = None,
    max_duration: MaxDuration = None,
    max_errors: MaxErrors = None,
    linger: Linger = 0,
    follow: Annotated[bool, typer.Option("--follow/--no-follow", help="Show events until the end.")] = True,
    project: Project = None,
    create: CreateProject = False,
    output: Output = Format.TABLE,
) -> int:
    """Submit a task to an agent, and show the agent's events and output.

    Each attempt runs in its own new sandbox. The exit status is 1 if the task does not complete.

    As JSON, one event per line, or with --no-follow one document; with `-o name` only the task's name.
    """
    from sandherd.cli import task_submission
    from sandherd.cli.herd_session import run_with_herd
    from sandherd.cli.parse.harness import harness as harness_of
    from sandherd.cli.parse.labels import new_labels
    from sandherd.cli.parse.task_spec import spec
    from sandherd.cli.parse.units import limits_of
    from sandherd.cli.parse.work_source import split
    from sandherd.cli.scheduled_task import RunCapture

    repository = repository_source(
        repo,
        base=base,
        ticket=ticket,
        branch=branch,
        join=join,
        no_push=no_push,
        no_commit_rest=no_commit_rest,
        submodules=submodules,
        lfs=lfs,
        git_proxy=git_proxy,
        pull_request=pr,
        merge=merge,
    )
    if text is None:
        raise typer.BadParameter("describe the task, or name a program after `--`", param_hint="TASK")
    resumed_task = resume_source(resume, resume_attempt, fork=fork, work=not session_only)
    inline, work = split(file or [], directory)
    refuse_other_trees(repository, directory, resumed_task, uploads=bool(work), no_repo=no_repo)
    task = spec(
        text,
        harness=harness_of(harness, argv or [], model, ask=ask or [], deny=deny or [], fields=set_ or []),
        runtime=runtime,
        image=image,
        profile=profile,
        files=inline,
        env=env or [],
        secret_env=secret_env or [],
        secret_references=secret or [],
        agent_server={} if agent_server else None,
        linger=linger,
        priority=priority,
        kind=kind,
        budget=budget,
        max_intervention=max_intervention,
        constraints=constraints_of(forbid_path, forbid_command, permit),
        deadline=deadline,
        depends_on=depends_on or [],
        attempts=attempts,
        attempt_timeout=attempt_timeout,
        task_timeout=task_timeout,
        retry_also=retry_also or [],
        on_retry=on_retry,
        keep_work=keep_work or directory is not None,
        labels=new_labels(labels or []),
        repository=repository.of_url() if repository is not None and repository.url else None,
        no_repository=no_repo,
        co_author=co_author(with_co_author, repo),
        continuous=continuous(
            until=until,
            until_said=until_said,
            check_timeout=check_timeout,
            iterations=max_iterations,
            cost=max_cost,
            duration=max_duration,
            errors=max_errors,
        ),
    )
    limits = limits_of(memory, cores)
    local = repository is not None and repository.is_local
    if (capture := ctx.find_object(RunCapture)) is not None:
        others = {"name": name, "resume": resumed_task, "dir": work, "project": project, "create": create}
        default = repository is not None and repository.is_default
        unsupported = {"repo PATH (name its URL)": local, "base, --ticket and others without --repo": default}
        return capture.store(task, limits, **others, **unsupported)
    uploads = _repository_to_upload(repository) or work
    return run_with_herd(
        ctx,
        lambda herd: task_submission.run(
            herd, task, output, name=name, follow=follow, limits=limits, resume=resumed_task, uploads=uploads
        ),
        project=project,
        create=create,
    )


def _repository_to_upload(repository: "RepositorySource | None") -> "LocalRepository | RepositorySource | None":
    """The examined local repository, or the project's default repository; None for another one."""
    if repository is None or not repository.is_local:
        return repository if repository is not None and repository.is_default else None
    from sandherd.cli.local_repositories import examine_local  # only needed with a repository

    return examine_local({"": repository}).get("")
