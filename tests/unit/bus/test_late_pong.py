"""A flush that has timed out, and the broker's reply to it, which comes later."""

import asyncio

import pytest

from sandherd.bus.tls_client import TlsClient


async def test_late_pong_does_not_end_the_reading() -> None:
    """The PONG of a flush that was given up is taken, and the next one is that of the next flush."""
    client = TlsClient(tls_required=False)
    given_up, waiting = (asyncio.get_running_loop().create_future() for _ in range(2))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(given_up, 0)
    client._pongs += [given_up, waiting]
    await client._process_pong()
    assert not waiting.done()
    await client._process_pong()
    assert waiting.result() is True
