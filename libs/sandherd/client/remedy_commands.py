"""The commands for the remedies that services suggest. Services name no command, because web pages show them, too."""

import re
from typing import Final

_NAME: Final = r"([\w][\w./-]*\w)"
REMEDY_COMMANDS: Final = {
    "change project NAME": "projects set NAME",
    "check the herd": "doctor",
    "compare branch NAME": "branches diff NAME",
    "create a sandbox with an agent server": "sandboxes create --agent-server",
    "create project NAME": "projects create NAME",
    "delete a schedule that is not needed": "schedules delete SCHEDULE",
    "delete a secret that is not needed": "secrets delete SECRET",
    "fetch branch NAME": "branches fetch NAME",
    "list the archived days": "history archives",
    "list the branches": "branches list",
    "list the commands of NAME": "events NAME --type agent.exec_started",
    "list the dead letters": "dead list",
    "list the sandboxes": "sandboxes list",
    "list the schedules": "schedules list",
    "list the secrets": "secrets list",
    "list the tasks": "tasks list",
    "list the tokens": "tokens list",
    "list the webhooks": "webhooks list",
    "open another pull request of branch NAME": "branches pr NAME",
    "read the output of the agent of NAME": "logs NAME",
    "read the trajectory of NAME": "trajectory NAME",
    "resume sandbox NAME": "sandboxes resume NAME",
    "revoke a session that is not needed": "tokens revoke TOKEN",
    "revoke a token that is not needed": "tokens revoke TOKEN",
    "revoke token NAME": "tokens revoke NAME",
    "rotate the secret of the webhook": "webhooks rotate WEBHOOK",
    "saved commits on branch NAME": "branches show NAME",
    "terminate sandbox NAME": "sandboxes terminate NAME",
}
"""The command for each phrase in remedies of services. `NAME` stands for the name at this place in the remedy. The user
replaces other words in capitals."""


def with_command(remedy: str) -> str:
    """The remedy, with the command for it in parentheses. Unchanged if the remedy names a command itself. Pure."""
    if "`sandherd " in remedy:
        return remedy
    for phrase, command in REMEDY_COMMANDS.items():
        if match := re.search(rf"\b{phrase.replace('NAME', _NAME)}", remedy):
            full_command = command.replace("NAME", match.groups()[0] if match.groups() else "")
            return f"{remedy[: match.end()]} (`sandherd {full_command}`){remedy[match.end() :]}"
    return remedy
