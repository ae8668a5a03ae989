"""`sandherd run` and `send`: giving work, and saying something to who does it."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Final

import typer

from sandherd.client.cli.harness_options import Ask, Deny, Harness, Model, Set
from sandherd.client.cli.options import (
    AgentServer,
    Cores,
    Env,
    Files,
    Format,
    Image,
    Memory,
    OnRetry,
    Output,
    Priority,
    Profile,
    Project,
    Runtime,
    SandboxName,
    SecretEnv,
    Secrets,
    Voice,
    example,
)
from sandherd.client.cli.resuming import Attempt, Fork, KeepWork, Resume, SessionOnly, wanted
from sandherd.client.cli.rounds import (
    CheckTimeout,
    MaxCost,
    MaxDuration,
    MaxErrors,
    MaxIterations,
    Until,
    UntilSaid,
    rounds,
)
from sandherd.contracts.failures import ErrorType

if TYPE_CHECKING:
    from sandherd.client.herd import Herd
    from sandherd.contracts.commands import Sayable

SAID_AS: "Final[Mapping[Voice, Sayable]]" = {
    Voice.USER: "user_message",
    Voice.NUDGE: "guardian_nudge",
    Voice.SYSTEM: "system",
}
RUN_EXAMPLE = example(
    'sandherd run "Compute C(50, 25)" --file agent.py -- python3 agent.py',
    'sandherd run "Say hello" --env NAME=you --no-follow -- sh -c "echo hello $NAME"',
    'sandherd run "Fix the failing test" --harness claude --secret-env ANTHROPIC_API_KEY',
    'sandherd run "Tidy up" --harness claude --secret ANTHROPIC_API_KEY=anthropic-key --ask Bash --set max_turns=40',
    'sandherd run "Make the tests pass" --until "make test" --max-iterations 5 --harness claude',
    'sandherd run "Now write the tests" --harness claude --resume task-01kahc5x3tf8b9n2m4r6v8w0ya --fork',
    'sandherd run "Build it" --priority high --attempts 3 --retry-also exit_status --memory 4g -- make',
)
SEND_EXAMPLE = example(
    'sandherd send sbx-01kahc5x3tf8b9n2m4r6v8w0ya "Also write a test"',
    'sandherd send sbx-01kahc5x3tf8b9n2m4r6v8w0ya "Stop, and undo that" --interrupt',
)


def run(  # noqa: PLR0913  # one parameter per option
    ctx: typer.Context,
    text: Annotated[str, typer.Argument(metavar="TASK", help="What is to be done, in words.")],
    argv: Annotated[list[str] | None, typer.Argument(metavar="-- PROGRAM…", help="The program that does it.")] = None,
    *,
    harness: Harness = "command",
    model: Model = None,
    ask: Ask = None,
    deny: Deny = None,
    set_: Set = None,
    runtime: Runtime = None,
    image: Image = None,
    profile: Profile = None,
    memory: Memory = None,
    cores: Cores = None,
    file: Files = None,
    env: Env = None,
    secret_env: SecretEnv = None,
    secret: Secrets = None,
    agent_server: AgentServer = False,
    priority: Annotated[
        Priority, typer.Option("--priority", help="Before or after others that wait.")
    ] = Priority.NORMAL,
    deadline: Annotated[
        str | None,
        typer.Option("--deadline", metavar="WHEN", help="When it should be done, for its turn: 2h, or ISO 8601."),
    ] = None,
    depends_on: Annotated[
        list[str] | None,
        typer.Option("--depends-on", metavar="TASK", help="Begin when this task is completed; again for more."),
    ] = None,
    attempts: Annotated[
        int | None, typer.Option("--attempts", metavar="N", help="How often it is tried at the most.", min=1)
    ] = None,
    attempt_timeout: Annotated[
        str | None,
        typer.Option("--attempt-timeout", metavar="TIME", help="How long one attempt may take: 90s, 10m, 2h."),
    ] = None,
    task_timeout: Annotated[
        str | None, typer.Option("--task-timeout", metavar="TIME", help="The same for all of it, waiting included.")
    ] = None,
    retry_also: Annotated[
        list[ErrorType] | None,
        typer.Option(
            "--retry-also", metavar="ERROR", help="Try again after this, too, as exit_status; again for more."
        ),
    ] = None,
    on_retry: Annotated[
        OnRetry, typer.Option("--on-retry", help="The last attempt's work tree: beside the new one, or as the new one.")
    ] = OnRetry.OFFER,
    keep_work: KeepWork = False,
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
    linger: Annotated[
        int, typer.Option("--linger", metavar="SECONDS", help="Keep the sandbox so long for messages.", min=0)
    ] = 0,
    follow: Annotated[bool, typer.Option("--follow/--no-follow", help="Show what happens, to the end.")] = True,
    project: Project = None,
    output: Output = Format.TABLE,
) -> int:
    """Give a task to an agent, and show what it does.

    It works in a sandbox of its own, and in a new one for each attempt. The exit status is 1 if it is not completed.
    """
    from sandherd.client.cli import running
    from sandherd.client.cli.durations import limits_of
    from sandherd.client.cli.harness_fields import harness as harness_of
    from sandherd.client.cli.spec import spec
    from sandherd.client.cli.talking import talk

    task = spec(
        text,
        harness=harness_of(harness, argv or [], model, ask=ask or [], deny=deny or [], fields=set_ or []),
        runtime=runtime,
        image=image,
        profile=profile,
        files=file or [],
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
        keep_work=keep_work,
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
    most, earlier = limits_of(memory, cores), wanted(resume, resume_attempt, fork=fork, work=not session_only)
    return talk(
        ctx,
        lambda herd: running.run(herd, task, output, follow=follow, limits=most, earlier=earlier),
        project=project,
    )


def send(
    ctx: typer.Context,
    sandbox: SandboxName,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What to say.")],
    *,
    interrupt: Annotated[bool, typer.Option("--interrupt", help="Stop what the agent is doing.")] = False,
    as_: Annotated[Voice, typer.Option("--as", help="Who seems to speak.", show_default=True)] = Voice.USER,
    timeout: Annotated[float, typer.Option("--timeout", metavar="SECONDS", help="How long to wait.", min=0.1)] = 30.0,
    project: Project = None,
    output: Output = Format.TABLE,
) -> int:
    """Say something to a running agent.

    Waits for its receipt, and shows how long the delivery took. The exit status is 1 if it can't be delivered.
    """
    from sandherd.client.cli import running
    from sandherd.client.cli.talking import talk

    async def work(herd: "Herd") -> int:
        kind: Sayable = "interrupt" if interrupt else SAID_AS[as_]
        delivery = await herd.deliver(sandbox, text, message_type=kind, timeout=timeout)
        return running.show_delivery(delivery, output)

    return talk(ctx, work, project=project)
