"""`sandherd send`: send messages to an agent."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Final

import typer

from sandherd.cli.options import Format, MessageRole, Output, Project, SandboxOrTask, example
from sandherd.cli.parse.durations import HALF_A_MINUTE, WaitTime

if TYPE_CHECKING:
    from sandherd.client.herd import Herd
    from sandherd.contracts.commands import SendableMessageType

MESSAGE_TYPES: "Final[Mapping[MessageRole, SendableMessageType]]" = {
    MessageRole.USER: "user_message",
    MessageRole.NUDGE: "guardian_nudge",
    MessageRole.SYSTEM: "system",
}
SEND_EXAMPLE = example(
    'sandherd send sbx-01kahc5x3tf8b9n2m4r6v8w0ya "Also write a test"',
    'sandherd send sbx-01kahc5x3tf8b9n2m4r6v8w0ya "Stop, and undo that" --interrupt',
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

    Waits until the agent has the message, and shows how long the delivery took. The exit status is 1 if the message
    can't be delivered.
    """
    from sandherd.cli import task_submission
    from sandherd.cli.herd_session import run_with_herd
    from sandherd.cli.name_prefixes import sandbox_of

    async def work(herd: "Herd") -> int:
        kind: SendableMessageType = "interrupt" if interrupt else MESSAGE_TYPES[as_]
        name = await sandbox_of(herd, sandbox)
        delivery = await herd.deliver(name, text, message_type=kind, timeout=timeout)
        return task_submission.show_delivery(delivery, output)

    return run_with_herd(ctx, work, project=project, activity="waiting until the agent has the message")
