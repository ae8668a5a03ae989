"""Operations on the monitor: show its view of a sandbox, and mute one of its rules for a sandbox."""

import asyncio
from typing import TYPE_CHECKING, Final

from sandherd.client.connection import Connection
from sandherd.client.errors import HerdError, ServiceUnavailableError, checked_name, validated
from sandherd.contracts import requests
from sandherd.contracts.errors import Code

if TYPE_CHECKING:
    from sandherd.client.connection import AnswerT
    from sandherd.contracts.commands import MuteRule, UnmuteRule

MUTE_SECONDS: Final = 30.0
"""The default time to wait until the monitor has muted or unmuted a rule."""
_POLL_SECONDS: Final = 0.2
_NO_MONITOR: Final = (
    "start a monitor (`sandherd up`), or try again in some seconds while another replica takes over; "
    "`sandherd status` shows which services run"
)


class MonitorOperations:
    """The methods of `Herd` about the monitor. Every method raises `HerdError`."""

    connection: Connection

    async def monitor_report(self) -> "requests.MonitorReport":
        """How much the live sandboxes of the project hinder each other, and which of them need a user.

        With a connection for all projects, there is a report for each project.
        """
        return await self._request_monitor(requests.GetMonitorReport())

    async def monitored(self, sandbox: str) -> "requests.MonitorView":
        """The monitor's view of a sandbox. Raises `HerdError`: `not_found` if the monitor does not watch it."""
        request = validated(requests.ShowSandbox, sandbox=checked_name(sandbox, "sandbox"))
        return await self._request_monitor(request)

    async def _request_monitor(self, request: "requests.Request[AnswerT]") -> "AnswerT":
        try:
            return await self.connection.request(request)
        except ServiceUnavailableError as error:
            text = f"no monitor watches the herd: {error.problem.message}"
            raise HerdError.of(Code.UNAVAILABLE, text, remedy=_NO_MONITOR) from None

    async def mute_rule(
        self,
        sandbox: str,
        rule: str,
        *,
        seconds: int | None = None,
        by: str | None = None,
        timeout: float = MUTE_SECONDS,
    ) -> "requests.MonitorView":
        """Mute a guardian rule for a sandbox, for `seconds` or until it is unmuted. Returns when it is muted."""
        from sandherd.contracts.commands import MuteRule

        name = checked_name(sandbox, "sandbox")
        command = validated(MuteRule, sandbox=name, rule=rule, seconds=seconds, muted_by=by)
        return await self._change(command, muted=True, timeout=timeout)

    async def unmute_rule(
        self, sandbox: str, rule: str, *, by: str | None = None, timeout: float = MUTE_SECONDS
    ) -> "requests.MonitorView":
        """Unmute a rule for a sandbox. Returns when the monitor evaluates it again."""
        from sandherd.contracts.commands import UnmuteRule

        command = validated(UnmuteRule, sandbox=checked_name(sandbox, "sandbox"), rule=rule, unmuted_by=by)
        return await self._change(command, muted=False, timeout=timeout)

    async def _change(self, command: "MuteRule | UnmuteRule", *, muted: bool, timeout: float) -> "requests.MonitorView":
        check_rule(await self.monitored(command.sandbox), command.rule)
        await self.connection.command(command, command.sandbox)
        deadline = asyncio.get_running_loop().time() + timeout
        while asyncio.get_running_loop().time() < deadline:
            view = await self.monitored(command.sandbox)
            state = next((rule.state for rule in view.rules if rule.rule == command.rule), None)
            if (state == "muted") == muted:
                return view
            await asyncio.sleep(_POLL_SECONDS)
        text = f"the monitor has not handled the command within {timeout:.3g} s; it will be handled later"
        raise HerdError.of(Code.UNAVAILABLE, text, remedy=f"see `sandherd monitor show {command.sandbox}`")


def check_rule(view: "requests.MonitorView", rule: str) -> None:
    """Raise `HerdError` (`not_found`) unless `rule` is a guardian rule of the monitor."""
    names = [rule_view.rule for rule_view in view.rules if rule_view.kind == "guardian"]
    if rule not in names:
        text = f"there is no guardian rule {rule}; there are {', '.join(names)}"
        raise HerdError.of(Code.NOT_FOUND, text, field="rule", remedy="name one of them")
