"""The check of `sandherd doctor` that states under which host uid sandboxes run. It judges what runtimes report."""

from collections.abc import Sequence
from typing import Final

from sandherd.client.cli.checks import Check, State
from sandherd.contracts.requests import RuntimeView

REMEDY: Final = (
    "run the spawner as root, with host uids that are free, or give its user subordinate uids (/etc/subuid, "
    "/etc/subgid, newuidmap): each sandbox then has a host uid of its own"
)
_FOUND: Final = {
    "own": (State.RIGHT, "each sandbox of runtime {} has a host uid of its own"),
    "subordinate": (State.RIGHT, "each sandbox of runtime {} has a subordinate uid of the spawner's user"),
    "spawner": (State.WORTH_A_LOOK, "sandboxes of runtime {} share the host uid of the spawner"),
    "root": (State.WORTH_A_LOOK, "sandboxes of runtime {} share the uid of the host's root"),
}


def judge_host_uids(runtimes: Sequence[RuntimeView]) -> list[Check]:
    """One check for each runtime that reports it. What follows from a shared uid is among the runtime's gaps."""
    return [_judge(one) for one in runtimes if one.host_uid in _FOUND]


def _judge(one: RuntimeView) -> Check:
    state, found = _FOUND[one.host_uid]
    return Check("sandbox host uid", state, found.format(one.runtime), None if state is State.RIGHT else REMEDY)
