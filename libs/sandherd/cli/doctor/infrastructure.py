"""Checks of the servers of the broker's cluster, and of the installed agent SDKs."""

import asyncio
from dataclasses import replace
from typing import Final

from sandherd.admin.toolchains import PYTHON_OF_KIND, is_world_writable
from sandherd.client.connection import Connection
from sandherd.client.context import Context
from sandherd.client.doctor.check import Check, CheckState
from sandherd.client.errors import HerdError

_CONNECT_SECONDS: Final = 2.0
_SDK_REMEDY: Final = "replace it on the machine where the spawner runs: sandherd harness install "


async def check_servers(context: Context) -> list[Check]:
    """A check for each server of a cluster: users do not notice one failed server until another one fails.

    Empty if there is only one server, as the check of the broker covers it.
    """
    addresses = [address.strip() for address in context.nats_url.split(",")]
    if len(addresses) < 2:
        return []
    return list(await asyncio.gather(*(_check_server(context, address) for address in addresses)))


async def _check_server(context: Context, address: str) -> Check:
    name = f"server {address.rpartition('//')[2].rpartition('@')[2]}"
    try:
        async with Connection.open(replace(context, nats_url=address), patience=_CONNECT_SECONDS):
            return Check(name, CheckState.RIGHT, "accepts connections")
    except HerdError as error:
        remedy = "see its log; the herd keeps working while more than half of the servers do"
        return Check(name, CheckState.WARNING, error.problem.message, remedy)


def check_agent_sdks(context: Context) -> list[Check]:
    """A failed check for each agent SDK that all users of this host can write: they could change the code of agents."""
    directory = context.toolchains or context.home / "toolchains"
    return [
        Check("agent SDK", CheckState.WRONG, f"all users of this host may write {directory / kind}", _SDK_REMEDY + kind)
        for kind in PYTHON_OF_KIND
        if is_world_writable(directory / kind)
    ]
