"""`agent-server` shows the key of an agent server only on request."""

import asyncio
import json
from typing import Any, cast

import pytest

from sandherd.cli.agent_server import show
from sandherd.cli.options import Format
from sandherd.client.herd import Herd
from sandherd.contracts.requests import AgentServerView

KEY, TOKEN = "k" * 43, "t" * 32


class RequestedView:
    """A herd with one agent server."""

    def __init__(self, state: Any) -> None:
        self.state = state

    async def agent_server(self, sandbox: str, *, with_key: bool) -> AgentServerView:
        return AgentServerView(
            sandbox=sandbox,
            kind="openhands",
            state=self.state,
            url="http://127.0.0.1:9",
            key=KEY if with_key else None,
            headers={"x-token": TOKEN} if with_key else None,
        )


@pytest.mark.parametrize("output", list(Format))
@pytest.mark.parametrize("key", [True, False])
def test_key_is_shown_only_on_request(output: Format, key: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """The URL and the state are always shown, in both formats."""
    herd = cast("Herd", RequestedView("ready"))
    assert asyncio.run(show(herd, "sbx-1", output, key=key)) == 0
    shown = capsys.readouterr().out
    assert (KEY in shown, TOKEN in shown) == (key, key)
    assert "http://127.0.0.1:9" in shown
    if output.is_json:
        assert ("key" in json.loads(shown), "headers" in json.loads(shown)) == (key, key)
    elif key:
        assert f"header x-token  {TOKEN}" in shown


def test_agent_server_that_is_not_ready_sets_exit_status(capsys: pytest.CaptureFixture[str]) -> None:
    """A script can wait for it."""
    assert asyncio.run(show(cast("Herd", RequestedView("starting")), "sbx-1", Format.TABLE, key=False)) == 1
    assert "starting" in capsys.readouterr().out


def test_repr_of_a_reply_contains_no_key() -> None:
    """A log of the object does not expose it."""
    view = AgentServerView(sandbox="sbx-1", kind="openhands", state="ready", key=KEY, headers={"x-token": TOKEN})
    assert KEY not in repr(view)
    assert TOKEN not in repr(view)
