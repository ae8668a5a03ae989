"""Adds commands to the remedies of checks. The checks name none, because their texts are also shown elsewhere."""

from typing import Final

from sandherd.client.remedy_commands import with_command

_STATUS: Final = "`sandherd status`, `docker compose ps` or `kubectl get pods`"
COMMANDS: Final = {
    "apply the migrations of this version": "`sandherd-event-ingest migrate`",
    "audit the history": "`sandherd audit`",
    "check that Postgres runs": "for a local stack `sandherd status`",
    "check that each service runs": _STATUS,
    "check that it runs": _STATUS,
    "create a new credential": "`sandherd identity init`",
    "list the lost tasks": "`sandherd tasks list --past`",
    "provision the herd": "`sandherd provision`, with `--identity` if the herd's keys are elsewhere; "
    "for a local stack `sandherd up`",
    "set the clock": "as with `timedatectl set-ntp true`",
}
"""Commands by a phrase in the remedies of checks."""
_LOCAL: Final = {
    "check that Postgres runs": "`sandherd status`",
    "check that each service runs": "`sandherd status`",
    "check that it runs": "`sandherd status`",
    "provision the herd": "`sandherd down`, then `sandherd up`",
}
"""Commands that replace those of `COMMANDS` on the machine of a local stack."""


def with_commands(remedy: str, *, local: bool = False) -> str:
    """The remedy, with the command in parentheses after its phrase. `local` selects those for a local stack. Pure."""
    known = next((phrase for phrase in COMMANDS if phrase in remedy), None)
    if known is None:
        return with_command(remedy)
    command = _LOCAL.get(known, COMMANDS[known]) if local else COMMANDS[known]
    return remedy.replace(known, f"{known} ({command})", 1)
