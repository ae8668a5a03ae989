"""Asking whether the agent may use a tool: before each use where anything is asked or denied, in whatever mode."""

from typing import Any, Final

from claude_agent_sdk import HookMatcher, PermissionResultAllow, PermissionResultDeny

from sandherd_drivers.claude.options import ASK_AGAIN_NEVER, mode
from sandherd_drivers.claude.said import tool_name
from sandherd_drivers.commands import Begin
from sandherd_drivers.leave import asks
from sandherd_drivers.wire import Wire

_NOT_ALLOWED: Final = "this tool is not among those that are allowed"
_ONLY_PLANS: Final = "only a plan is wanted: say it, and change nothing"
_PLAN_IS_MADE: Final = "ExitPlanMode"


class Asking:
    """The two functions that the SDK calls, and the options that make it do so."""

    def __init__(self, wire: Wire, begin: Begin) -> None:
        self._wire = wire
        self._asks = asks(begin.harness)
        self._mode = mode(begin.harness)
        self._limited = bool(begin.harness.get("allowed_tools"))
        self._granted: set[str] = set()

    def options(self) -> dict[str, Any]:
        """What is added to the SDK's options."""
        added: dict[str, Any] = {}
        if self._mode != "bypassPermissions":
            added["can_use_tool"] = self._permit
        if self._asks:
            hook = HookMatcher(hooks=[self._before], timeout=ASK_AGAIN_NEVER, on_failure="block")
            added["hooks"] = {"PreToolUse": [hook]}
        return added

    async def _before(self, given: dict[str, Any], use: str | None, _context: Any) -> dict[str, Any]:
        """Before each use of a tool, also by a sub-agent."""
        decision = await self._wire.ask(tool_name(given["tool_name"]), dict(given["tool_input"]))
        if not decision.granted:
            return _verdict("deny", decision.reason or "it was denied")
        self._granted.add(use or given.get("tool_use_id") or "")
        # While it only plans, leave for a tool is none to carry the plan out: the program goes on to `_permit`.
        return {} if self._mode == "plan" else _verdict("allow", decision.reason or "it was granted")

    async def _permit(self, tool: str, given: dict[str, Any], context: Any) -> Any:
        """When the program would ask the person at its terminal."""
        if self._mode == "plan":
            return self._permit_in_plan(tool, given, context.tool_use_id)
        if self._asks and context.tool_use_id not in self._granted:
            decision = await self._wire.ask(tool_name(tool), dict(given), context.decision_reason)
            if not decision.granted:
                return PermissionResultDeny(message=decision.reason or "it was denied")
        elif self._limited and not self._asks:
            return PermissionResultDeny(message=_NOT_ALLOWED)
        return PermissionResultAllow(updated_input=given)

    def _permit_in_plan(self, tool: str, given: dict[str, Any], use: str) -> Any:
        """While it only plans it does nothing, until somebody was asked about its plan and has granted it."""
        if tool != _PLAN_IS_MADE or use not in self._granted:
            return PermissionResultDeny(message=_ONLY_PLANS)
        self._mode = "default"
        return PermissionResultAllow(updated_input=given)


def _verdict(verdict: str, reason: str) -> dict[str, Any]:
    said = {"hookEventName": "PreToolUse", "permissionDecision": verdict, "permissionDecisionReason": reason}
    return {"hookSpecificOutput": said}
