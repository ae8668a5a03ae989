"""What agents of each kind can do beside their task; the conformance suite holds every kind to it."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, kw_only=True)
class Abilities:
    """What holds for all agents of a kind."""

    hears_mid_turn: bool
    """A message reaches it in the middle of a turn; else it waits for the turn's end."""
    interruptible: bool
    """An interrupt stops its turn, and the agent lives on; else its one turn is its whole life."""
    follows_up: bool
    """When its task is done, a message begins another turn; else that is refused."""
    keeps_session: bool
    """Its session is saved as a transcript, from which another attempt can go on."""
    asks_leave: bool
    """`approvals` says which of its tools need a person's leave."""
    takes_tools: bool
    """It is given the herd's own tools, and those of `mcp_servers`."""


ABILITIES: Final = {
    "command": Abilities(
        hears_mid_turn=True,
        interruptible=False,
        follows_up=False,
        keeps_session=False,
        asks_leave=False,
        takes_tools=False,
    ),
    "claude": Abilities(
        hears_mid_turn=True,
        interruptible=True,
        follows_up=True,
        keeps_session=True,
        asks_leave=True,
        takes_tools=True,
    ),
    "openhands": Abilities(
        hears_mid_turn=True,
        interruptible=True,
        follows_up=True,
        keeps_session=True,
        asks_leave=True,
        takes_tools=True,
    ),
    "acp": Abilities(
        hears_mid_turn=False,
        interruptible=True,
        follows_up=True,
        keeps_session=False,
        asks_leave=True,
        takes_tools=True,
    ),
}
"""By kind."""
