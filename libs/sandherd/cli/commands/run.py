"""`sandherd run` and `send`: submit a task, and send messages to its agent."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Final

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
    MessageRole,
    OnRetry,
    Output,
    Priority,
    Profile,
    Project,
    Runtime,
    SandboxOrTask,
    SecretEnv,
    Secrets,
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
from sandherd.cli.parse.durations import HALF_A_MINUTE, Linger, WaitTime
from sandherd.cli.parse.iterations import (
    CheckTimeout,
    MaxCost,
    MaxDuration,
    MaxErrors,
    MaxIterations,
    Until,
    UntilSaid,
    rounds,
)
from sandherd.cli.parse.list_options import NewLabels, TaskNameToGive
from sandherd.contracts.failures import ErrorType

if TYPE_CHECKING:
    from sandherd.client.herd import Herd
    from sandherd.contracts.commands import SendableMessageType

MESSAGE_TYPES: "Final[Mapping[MessageRole, SendableMessageType]]" = {
    MessageRole.USER: "user_message",
    MessageRole.NUDGE: "guardian_nudge",
    MessageRole.SYSTEM: "system",
}
RUN_EXAMPLE = example(
    'sandherd run "Compute C(50, 25)" --file agent.py -- python3 agent.py',
    'sandherd run "Say hello" --env NAME=you --no-follow -- sh -c "echo hello $NAME"',
    'sandherd run "Fix the failing test" --dir . --harness claude --secret-env ANTHROPIC_API_KEY',
    'sandherd run "Tidy up" --harness claude --secret ANTHROPIC_API_KEY=anthropic-key --ask Bash --set max_turns=40',
    'sandherd run "Make the tests pass" --until "make test" --max-iterations 5 --harness claude',
    'sandherd run "Now write the tests" --harness claude --resume task-01kahc5x3tf8b9n2m4r6v8w0ya --fork',
    'sandherd run "Build it" --name build-1 --label team=web --no-follow -- make',
    'sandherd run "Build it" --priority high --attempts 3 --retry-also exit_status --memory 4g -- make',
)
SEND_EXAMPLE = example(
    'sandherd send sbx-01kahc5x3tf8b9n2m4r6v8w0ya "Also write a test"',
    'sandherd send sbx-01kahc5x3tf8b9n2m4r6v8w0ya "Stop, and undo that" --interrupt',
)


def run(  # noqa: PLR0913  # one parameter per option
    ctx: typer.Context,
    text: Annotated[str, typer.Argument(metavar="TASK", help="Description of the task.")],
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
    directory: Directory = None,
    file: AnyFiles = None,
    env: Env = None,
    secret_env: SecretEnv = None,
    secret: Secrets = None,
    agent_server: AgentServer = False,
    priority: Annotated[
        Priority, typer.Option("--priority", help="Scheduling priority among pending tasks.")
    ] = Priority.NORMAL,
    deadline: Annotated[
        str | None,
        typer.Option("--deadline", metavar="WHEN", help="When it should be done; affects scheduling: 2h, or ISO 8601."),
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
        typer.Option("--retry-also", metavar="ERROR", help="Also retry after this error, as exit_status; repeatable."),
    ] = None,
    on_retry: Annotated[
        OnRetry,
        typer.Option(
            "--on-retry", help="offer: copy the previous work tree next to the new one; restore: start in it."
        ),
    ] = OnRetry.OFFER,
    keep_work: KeepWork = False,
    name: TaskNameToGive = None,
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
    """Submit a task to an agent, and show what the agent does.

    Each attempt runs in a new sandbox of its own. The exit status is 1 if the task does not complete.
    """
    from sandherd.cli import task_submission
    from sandherd.cli.parse.harness import harness as harness_of
    from sandherd.cli.parse.labels import new_labels
    from sandherd.cli.parse.task_spec import spec
    from sandherd.cli.parse.units import limits_of
    from sandherd.cli.parse.work_source import split
    from sandherd.cli.scheduled_task import RunCapture
    from sandherd.cli.session import talk

    inline, work = split(file or [], directory)
    task = spec(
        text,
        harness=harness_of(harness, argv or [], model, ask=ask or [], deny=deny or [], fields=set_ or []),
        runtime=runtime,
        image=image,
        profile=profile,
        files=inline,
        env=env or [],
        secret=secret_env or [],
        named=secret or [],
        agent_server={} if agent_server else None,
        linger=linger,
        priority=priority,
        deadline=deadline,
        depends_on=depends_on or [],
        attempts=attempts,
        attempt_timeout=attempt_timeout,
        task_timeout=task_timeout,
        retry_also=retry_also or [],
        on_retry=on_retry,
        keep_work=keep_work or directory is not None,
        labels=new_labels(labels or []),
        rounds=rounds(
            until=until,
            until_said=until_said,
            check_timeout=check_timeout,
            iterations=max_iterations,
            cost=max_cost,
            duration=max_duration,
            errors=max_errors,
        ),
    )
    limits, earlier = limits_of(memory, cores), resume_source(resume, resume_attempt, fork=fork, work=not session_only)
    if (taken := ctx.find_object(RunCapture)) is not None:
        return taken.take(task, limits, name=name, resume=earlier, dir=work, project=project, create=create)
    return talk(
        ctx,
        lambda herd: task_submission.run(
            herd, task, output, name=name, follow=follow, limits=limits, earlier=earlier, work=work
        ),
        project=project,
        create=create,
    )


def send(
    ctx: typer.Context,
    sandbox: SandboxOrTask,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The message.")],
    *,
    interrupt: Annotated[bool, typer.Option("--interrupt", help="Stop the agent's current work.")] = False,
    as_: Annotated[
        MessageRole, typer.Option("--as", help="Sender role shown to the agent.", show_default=True)
    ] = MessageRole.USER,
    timeout: WaitTime = HALF_A_MINUTE,
    project: Project = None,
    output: Output = Format.TABLE,
) -> int:
    """Send a message to a running agent.

    Waits until the agent has it, and shows how long the delivery took. The exit status is 1 if it can't be delivered.
    """
    from sandherd.cli import task_submission
    from sandherd.cli.names import sandbox_of
    from sandherd.cli.session import talk

    async def work(herd: "Herd") -> int:
        kind: SendableMessageType = "interrupt" if interrupt else MESSAGE_TYPES[as_]
        name = await sandbox_of(herd, sandbox)
        delivery = await herd.deliver(name, text, message_type=kind, timeout=timeout)
        return task_submission.show_delivery(delivery, output)

    return talk(ctx, work, project=project, activity="waiting until the agent has the message")
