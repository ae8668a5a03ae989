"""Whose word for an event a worker takes. All that is not named here it says by itself, because others decide by it."""

from collections.abc import Mapping
from typing import Final, Literal

Teller = Literal["agent", "driver"]

PROGRAM: Final = "program"
"""The subtype of a call of a tool that only a worker may name: it may take as long as its sandbox may live."""

HEARD_FROM: Final[Mapping[str, Teller]] = {
    "agent.turn_started": "driver",
    "agent.turn_completed": "driver",
    "agent.stream_error": "driver",
    "agent.model_call_started": "agent",
    "agent.model_call_completed": "agent",
    "agent.system_message": "agent",
    "agent.user_message": "agent",
    "agent.assistant_message": "agent",
    "agent.message": "agent",
    "agent.thinking": "agent",
    "agent.usage": "agent",
    "agent.error": "agent",
    "agent.tool_use": "agent",
    "agent.tool_completed": "agent",
    "agent.tool_result": "agent",
    "agent.user_tool_result": "agent",
    "agent.subagent_invoked": "agent",
    "agent.subagent_completed": "agent",
    "agent.skill_invoked": "agent",
    "agent.skill_completed": "agent",
}
"""`agent`: any may say it of itself. `driver`: only the program that runs an agent for its worker, as it alone knows
where a turn begins and ends."""


def heard(event: str, teller: Teller) -> bool:
    """Whether a worker takes this teller's word for it."""
    return HEARD_FROM.get(event) in {"agent", teller}
