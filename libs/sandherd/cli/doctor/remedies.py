"""Adds commands to the remedies of checks. The checks name none, because their texts are also shown elsewhere."""

from typing import Final

from sandherd.client.remedy_commands import with_command

_STATUS_COMMANDS: Final = "`sandherd status`, `docker compose ps` or `kubectl get pods`"
COMMANDS: Final = {
    "apply the migrations of this version": "`sandherd-event-ingest migrate`",
    "audit the history": "`sandherd audit`",
    "check that Postgres runs": "for a local stack `sandherd status`",
    "check that each service runs": _STATUS_COMMANDS,
    "check that it runs": _STATUS_COMMANDS,
    "create a new credential": "`sandherd identity init`",
    "list the lost tasks": "`sandherd tasks list --past`",
    "provision the herd": "`sandherd provision`, with `--identity` if the herd's keys are elsewhere; "
    "for a local stack `sandherd up`",
    "set the clock": "as with `timedatectl set-ntp true`",
}
"""Commands by a phrase in the remedies of checks."""
_LOCAL_COMMANDS: Final = {
    "check that Postgres runs": "`sandherd status`",
    "check that each service runs": "`sandherd status`",
    "check that it runs": "`sandherd status`",
    "provision the herd": "`sandherd down`, then `sandherd up`",
}
"""Commands that replace those of `COMMANDS` on the machine of a local stack."""


def with_commands(remedy: str, *, local: bool = False) -> str:
    """The remedy, with the command in parentheses after its phrase. `local` selects those for a local stack. Pure."""
    phrase = next((text for text in COMMANDS if text in remedy), None)
    if phrase is None:
        return with_command(remedy)
    command = _LOCAL_COMMANDS.get(phrase, COMMANDS[phrase]) if local else COMMANDS[phrase]
    return remedy.replace(phrase, f"{phrase} ({command})", 1)
