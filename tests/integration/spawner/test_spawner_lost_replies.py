"""Replies of workers that the broker loses, as it may whenever a sandbox ends. Until then this was not known.

The end of any sandbox gives the account of sandboxes a new token. nats-server then drops the replies to all pending
requests from other accounts to workers, so that one project's sandboxes could disturb another's commands.
"""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

from sandherd.bus.identity import Key, KeyKind, SpawnerKeys
from sandherd.bus.identity.revocation import Revoker
from sandherd.contracts.requests import ExecOutput, ExecState, ExecStatus, WorkerExecStatus
from sandherd.contracts.states import SandboxState
from sandherd.contracts.subjects import Principal
from sandherd.stack.broker import Broker
from tests.integration.spawner.played import access_handlers, change_record, make_record, play
from tests.patience import PATIENCE

P = Principal


async def revoke(herd: Broker) -> None:
    """Revoke a credential, as the spawner does before the sandbox's record says that it has ended."""
    async with (
        herd.bus(P.SPAWNER) as spawner,
        Revoker.open(herd.url, SpawnerKeys.read(herd.spawner_identity), spawner.js) as revoker,
    ):
        now = datetime.now(UTC)
        await revoker.revoke({Key.new(KeyKind.USER).public: now + timedelta(hours=1)}, now)


async def test_request_is_repeated_when_a_sandbox_ends(herd: Broker) -> None:
    """While a client waits for a command's output, two other sandboxes end: the output still arrives."""
    received: asyncio.Queue[asyncio.Event] = asyncio.Queue()
    state = ExecState(exec="exc-1", state="running", output=[ExecOutput(stream="stdout", data=b"x")])

    async def wait_for_output(_request: Any) -> ExecState:
        replying = asyncio.Event()
        await received.put(replying)
        await replying.wait()
        return state

    async with (
        access_handlers(herd) as live,
        herd.bus(P.CLIENT, project="p1") as client,
        herd.bus(P.WORKER, project="p1", sandbox="sbx-1") as worker,
        asyncio.timeout(PATIENCE),
    ):
        await make_record(live)
        await play(worker, WorkerExecStatus, wait_for_output)
        request = ExecStatus(sandbox="sbx-1", exec="exc-1", wait_seconds=5)
        requesting = asyncio.create_task(client.ask(request, "p1", timeout=PATIENCE))
        for number in range(2):
            waiting = await received.get()
            await revoke(herd)
            waiting.set()  # this reply is lost
            other = f"sbx-other-{number}"
            await make_record(live, other)
            await change_record(live, other, state=SandboxState.TERMINATED)
        (await received.get()).set()
        assert (await requesting).output == state.output
