"""Sends webhooks to a receiver, after its URL is checked. Each attempt has a thread of its own."""

import asyncio
import threading
from collections.abc import Collection
from typing import Final

from sandherd.client.errors import HerdError
from sandherd.client.webhooks.addresses import checked_url, is_public, literal_address
from sandherd.client.webhooks.sender import TOTAL_SECONDS, Sender, SendResult
from sandherd.contracts.errors import Code, ContractError

_REMEDY: Final = "use https and a public address, or have an operator name the host in SANDHERD_WEBHOOK_HOSTS"
_HOSTS: Final = "an operator can name the host in SANDHERD_WEBHOOK_HOSTS"


class Receiver:
    """Sends to one URL. Hosts in `hosts` may have private addresses, and http is permitted for them."""

    def __init__(self, url: str, hosts: Collection[str], *, total_seconds: float = TOTAL_SECONDS) -> None:
        """Raises `ContractError` for a URL that may not be used."""
        host = checked_host(url)
        private = host in hosts
        try:
            parts = checked_url(url, private=private)
        except HerdError as error:
            problem = error.problem
            raise ContractError(problem.code, problem.message, field="url", remedy=_REMEDY) from error
        self._sender = Sender(parts, private=private, total_seconds=total_seconds, remedy=_HOSTS)

    async def send(self, body: bytes, headers: dict[str, str]) -> SendResult:
        """Send a webhook once, in a new thread: a receiver may take half a minute, and the pool has few threads.

        The thread is a daemon, so that a service that stops does not wait for the receiver.
        """
        loop = asyncio.get_running_loop()
        result: asyncio.Future[SendResult] = loop.create_future()

        def settle(found: SendResult) -> None:
            if not result.done():
                result.set_result(found)

        def work() -> None:
            found = self._sender.send(body, headers)
            if not loop.is_closed():
                loop.call_soon_threadsafe(settle, found)

        threading.Thread(target=work, name="webhook", daemon=True).start()
        return await result


def check_new_url(url: str, hosts: Collection[str]) -> None:
    """Raise `ContractError` for a URL that a new webhook can't have, also if its host is an address that is not public.

    If the host is a name, its addresses are checked before each request, because they may change.
    """
    Receiver(url, hosts)
    host = checked_host(url)
    address = literal_address(host)
    if address is not None and host not in hosts and not is_public(address):
        text = f"the URL can't be used: {address} is not a public address"
        raise ContractError(Code.INVALID_FIELD, text, field="url", remedy=_REMEDY)


def checked_host(url: str) -> str:
    """The host of a URL. Raises `ContractError` for a URL that is invalid for every host."""
    try:
        return checked_url(url, private=True).hostname or ""
    except HerdError as error:
        raise ContractError(Code.INVALID_FIELD, error.problem.message, field="url", remedy=_REMEDY) from error
