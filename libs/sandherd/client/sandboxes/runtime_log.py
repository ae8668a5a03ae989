"""Reads the log that a runtime stores for a sandbox."""

import tempfile

from sandherd.client.errors import checked_name, validated
from sandherd.client.events.protocols import HerdConnection
from sandherd.client.retry import request_with_retries
from sandherd.client.sandboxes import transfer
from sandherd.contracts.requests import GetRuntimeLogs, RuntimeLog


async def read(link: HerdConnection, sandbox: str, *, lines: int) -> tuple[bytes, bool]:
    """The last lines of the log, and whether bytes at their beginning are missing. Raises `HerdError`."""
    request = validated(GetRuntimeLogs, sandbox=checked_name(sandbox, "sandbox"), lines=lines)
    log: RuntimeLog = await request_with_retries(link, request)
    if log.artifact is None:
        return log.data or b"", log.truncated
    with tempfile.TemporaryFile() as file:
        await transfer.fetch(link, sandbox, log.artifact, file, transfer.silent)
        return file.read(), log.truncated
