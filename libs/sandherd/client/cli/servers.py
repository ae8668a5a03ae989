"""Whether each server of a broker answers, where there are several: one is not missed until another is away, too."""

import asyncio
from dataclasses import replace
from typing import Final

from sandherd.client.cli.checks import Check, State
from sandherd.client.connection import Connection
from sandherd.client.context import Context
from sandherd.client.errors import HerdError

_PATIENCE: Final = 2.0


async def look_at_servers(context: Context) -> list[Check]:
    """A check for each server. Nothing of a broker that is one server, which is looked at in any case."""
    addresses = [address.strip() for address in context.nats_url.split(",")]
    if len(addresses) < 2:
        return []
    return list(await asyncio.gather(*(_look(context, address) for address in addresses)))


async def _look(context: Context, address: str) -> Check:
    name = f"server {address.rpartition('//')[2].rpartition('@')[2]}"
    try:
        async with Connection.open(replace(context, nats_url=address), patience=_PATIENCE):
            return Check(name, State.RIGHT, "lets us in")
    except HerdError as error:
        remedy = "see its log; the herd goes on while more than half of the servers do"
        return Check(name, State.WORTH_A_LOOK, error.problem.message, remedy)
