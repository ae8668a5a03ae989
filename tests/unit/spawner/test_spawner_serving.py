"""What a sandbox says of its agent server is read with care, and small sandboxes get none."""

import json
from typing import Any

import pytest

from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.serving import SERVER_MEMORY_MB, AgentServer
from sandherd.contracts.specs import Limits, SandboxSpec
from spawner.access.serving import read
from spawner.resolving import Menu, Refusal, Resolved, resolve

GOOD: dict[str, Any] = {"kind": "openhands", "state": "ready", "starts": 1, "port": 41873, "key": "k" * 43}
MENU = Menu(runtimes=frozenset({"process"}), default_runtime="process", defaults=Limits(), caps=Limits(memory_mb=4096))


def test_what_the_worker_wrote_is_read() -> None:
    """And its key stands in no picture of it."""
    told = read(json.dumps(GOOD).encode(), "sbx-1")
    assert (told.state, told.port, told.key) == ("ready", 41873, "k" * 43)
    assert told.key not in repr(told)


@pytest.mark.parametrize(
    "wrong",
    [
        *({"port": 22}, {"port": 70_000}, {"port": "41873"}, {"state": "great"}, {"kind": "Open\x1b[2J"}),
        *({"key": "short"}, {"key": "k" * 30 + "\r\nX-Other: 1"}, {"starts": -1}),
    ],
)
def test_what_an_agent_may_have_written_there_is_not(wrong: dict[str, Any]) -> None:
    """A port of the host's own services, a key that is two headers: it can't be read, and none of it is repeated."""
    with pytest.raises(ContractError) as caught:
        read(json.dumps({**GOOD, **wrong}).encode(), "sbx-1")
    assert caught.value.problem.code is Code.UNAVAILABLE
    assert caught.value.problem.message == "what sandbox sbx-1 says of its agent server can't be read"


def test_a_sandbox_without_one_is_told_how_it_gets_one() -> None:
    """There is no file."""
    with pytest.raises(ContractError) as caught:
        read(None, "sbx-1")
    assert caught.value.problem.code is Code.NOT_FOUND
    assert "--agent-server" in (caught.value.problem.remedy or "")


def test_a_server_needs_room() -> None:
    """With too little memory it would be ended again and again: that is refused at once."""
    small = SandboxSpec(agent_server=AgentServer(), limits=Limits(memory_mb=SERVER_MEMORY_MB - 1))
    refused = resolve(small, MENU)
    assert isinstance(refused, Refusal)
    assert refused.field == "spec.limits.memory_mb"
    assert isinstance(resolve(SandboxSpec(agent_server=AgentServer()), MENU), Resolved)
