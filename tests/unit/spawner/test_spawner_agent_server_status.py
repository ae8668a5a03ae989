"""The status of a sandbox's agent server is validated, and sandboxes with little memory get no server."""

import json
from typing import Any

import pytest

from sandherd.contracts.agent_server import SERVER_MEMORY_MB, AgentServer
from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.specs import SandboxLimits, SandboxSpec
from spawner.access.agent_servers import read
from spawner.spec_resolution import Refusal, ResolvedSpec, SpawnPolicy, resolve

GOOD: dict[str, Any] = {"kind": "openhands", "state": "ready", "starts": 1, "port": 41873, "key": "k" * 43}
MENU = SpawnPolicy(
    runtimes=frozenset({"process"}),
    default_runtime="process",
    defaults=SandboxLimits(),
    caps=SandboxLimits(memory_mb=4096),
)


def test_status_of_agent_server_is_read() -> None:
    """The key is not in its repr."""
    status = read(json.dumps(GOOD).encode(), "sbx-1")
    assert (status.state, status.port, status.key) == ("ready", 41873, "k" * 43)
    assert status.key not in repr(status)


@pytest.mark.parametrize(
    "wrong",
    [
        *({"port": 22}, {"port": 70_000}, {"port": "41873"}, {"state": "great"}, {"kind": "Open\x1b[2J"}),
        *({"key": "short"}, {"key": "k" * 30 + "\r\nX-Other: 1"}, {"starts": -1}),
    ],
)
def test_forged_status_of_agent_server_is_refused(wrong: dict[str, Any]) -> None:
    """A port of the host's services and a key with line breaks are refused. The error repeats nothing of the status."""
    with pytest.raises(ContractError) as caught:
        read(json.dumps({**GOOD, **wrong}).encode(), "sbx-1")
    assert caught.value.problem.code is Code.UNAVAILABLE
    assert caught.value.problem.message == "the agent server status of sandbox sbx-1 is invalid"


def test_missing_agent_server_is_reported_with_the_remedy() -> None:
    """The error names the kind of sandbox that has one; the command line adds `--agent-server`."""
    with pytest.raises(ContractError) as caught:
        read(None, "sbx-1")
    assert caught.value.problem.code is Code.NOT_FOUND
    assert "with an agent server" in (caught.value.problem.remedy or "")


def test_agent_server_needs_memory() -> None:
    """With too little memory the server would be killed repeatedly, so the spec is refused."""
    small = SandboxSpec(agent_server=AgentServer(), limits=SandboxLimits(memory_mb=SERVER_MEMORY_MB - 1))
    refused = resolve(small, MENU)
    assert isinstance(refused, Refusal)
    assert refused.field == "spec.limits.memory_mb"
    assert isinstance(resolve(SandboxSpec(agent_server=AgentServer()), MENU), ResolvedSpec)
