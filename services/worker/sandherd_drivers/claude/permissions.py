"""Requests approval of tools: before each use if any tool needs approval or is denied, in every permission mode."""

from typing import Any, Final

from claude_agent_sdk import HookMatcher, PermissionResultAllow, PermissionResultDeny

from sandherd_drivers.approval_policy import needs_approval
from sandherd_drivers.claude.event_mapper import tool_name
from sandherd_drivers.claude.options import HOOK_TIMEOUT, permission_mode
from sandherd_drivers.commands import Begin
from sandherd_drivers.wire import Wire

_NOT_ALLOWED_REASON: Final = "this tool is not in the list of allowed tools"
_PLAN_ONLY_REASON: Final = "only a plan is requested: present it, and change nothing"
_EXIT_PLAN_TOOL: Final = "ExitPlanMode"


class ToolPermissions:
    """The two callbacks for the SDK, and the options that register them."""

    def __init__(self, wire: Wire, begin: Begin) -> None:
        self._wire = wire
        self._needs_approval = needs_approval(begin.harness)
        self._mode = permission_mode(begin.harness)
        self._has_allow_list = bool(begin.harness.get("allowed_tools"))
        self._granted_calls: set[str] = set()
        self.denials: dict[str, str] = {}
        """The outcomes of calls that were denied, by their ids. `ClaudeEventMapper` publishes and removes them."""

    def options(self) -> dict[str, Any]:
        """Additions to the SDK's options."""
        added: dict[str, Any] = {}
        if self._mode != "bypassPermissions":
            added["can_use_tool"] = self._permit_tool
        if self._needs_approval:
            hook = HookMatcher(hooks=[self._before_tool_use], timeout=HOOK_TIMEOUT, on_failure="block")
            added["hooks"] = {"PreToolUse": [hook]}
        return added

    async def _before_tool_use(
        self, arguments: dict[str, Any], tool_use_id: str | None, _context: Any
    ) -> dict[str, Any]:
        """Called before each use of a tool, also by a sub-agent."""
        decision = await self._wire.request_approval(tool_name(arguments["tool_name"]), dict(arguments["tool_input"]))
        call = tool_use_id or arguments.get("tool_use_id") or ""
        if not decision.granted:
            self.denials[call] = decision.outcome
            return _hook_output("deny", decision.reason or "it was denied")
        self._granted_calls.add(call)
        # In plan mode, approval of a tool does not allow carrying out the plan: the program calls `_permit_tool`, too.
        return {} if self._mode == "plan" else _hook_output("allow", decision.reason or "it was granted")

    async def _permit_tool(self, tool: str, arguments: dict[str, Any], context: Any) -> Any:
        """Called when the program would prompt the user at its terminal."""
        if self._mode == "plan":
            return self._permit_in_plan(tool, arguments, context.tool_use_id)
        if self._needs_approval and context.tool_use_id not in self._granted_calls:
            decision = await self._wire.request_approval(tool_name(tool), dict(arguments), context.decision_reason)
            if not decision.granted:
                return self._deny(context.tool_use_id, decision.reason or "it was denied", decision.outcome)
        elif self._has_allow_list and not self._needs_approval:
            return self._deny(context.tool_use_id, _NOT_ALLOWED_REASON)
        return PermissionResultAllow(updated_input=arguments)

    def _permit_in_plan(self, tool: str, arguments: dict[str, Any], tool_use_id: str) -> Any:
        """In plan mode no tool may run until the plan is approved."""
        if tool != _EXIT_PLAN_TOOL or tool_use_id not in self._granted_calls:
            return self._deny(tool_use_id, _PLAN_ONLY_REASON)
        self._mode = "default"
        return PermissionResultAllow(updated_input=arguments)

    def _deny(self, tool_use_id: str | None, reason: str, outcome: str = "denied") -> Any:
        self.denials[tool_use_id or ""] = outcome
        return PermissionResultDeny(message=reason)


def _hook_output(decision: str, reason: str) -> dict[str, Any]:
    output = {"hookEventName": "PreToolUse", "permissionDecision": decision, "permissionDecisionReason": reason}
    return {"hookSpecificOutput": output}
