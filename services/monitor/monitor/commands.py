"""The monitor's commands: a user mutes or unmutes a guardian rule for one sandbox. Every replica handles them.

The command takes effect by its published event: the replica that watches the sandbox reads it, even after a restart.
"""

from datetime import timedelta
from typing import Any, Final

from monitor.rule_set import RuleSet
from sandherd.bus.connection import Bus
from sandherd.bus.consumers.consumer import DONE, Delivery, Outcome
from sandherd.bus.consumers.refused_commands import refusal_of
from sandherd.bus.kv import read_record
from sandherd.bus.publisher import EventPublisher
from sandherd.contracts.commands import MuteRule, UnmuteRule
from sandherd.contracts.decoder import read_command
from sandherd.contracts.envelope import Envelope
from sandherd.contracts.errors import Code, Problem
from sandherd.contracts.events.monitor import MonitorRuleMuted, MonitorRuleUnmuted
from sandherd.contracts.records import SharedSandboxRecord
from sandherd.telemetry import logs

_log: Final = logs.get("commands")


class MonitorCommands:
    """Handles the monitor's commands."""

    def __init__(self, bus: Bus, publisher: EventPublisher, rules: RuleSet) -> None:
        self._bus = bus
        self._publisher = publisher
        self._rules = rules

    async def handle(self, delivery: Delivery) -> Outcome:
        """Handle one command. Raises `ContractError` for a command that breaks the contract."""
        command: Envelope[Any] = read_command(delivery.subject, delivery.data)
        data: MuteRule | UnmuteRule = command.data
        record = await read_record(self._bus, SharedSandboxRecord, command.project, data.sandbox)
        problem = refusal(data, self._rules, known=record is not None)
        if problem is not None:
            return await self._refuse(delivery, problem)
        await self._publisher.publish(
            event_of(data, delivery),
            project=command.project,
            entity=data.sandbox,
            sandboxid=data.sandbox,
            taskid=record.task if record is not None else None,
            traceparent=command.traceparent,
        )
        if isinstance(data, MuteRule):
            _log.info("rule muted", sandbox=data.sandbox, rule=data.rule)
        else:
            _log.info("rule unmuted", sandbox=data.sandbox, rule=data.rule)
        return DONE

    async def _refuse(self, delivery: Delivery, problem: Problem) -> Outcome:
        event = refusal_of(self._bus.ids, delivery, problem)
        if event is not None:
            await self._bus.publish_event(event)
        return DONE


def refusal(data: MuteRule | UnmuteRule, rules: RuleSet, *, known: bool) -> Problem | None:
    """The reason why a command is refused. None if it is carried out. `known` is whether the sandbox exists."""
    names = [rule.name for rule in rules.guardian]
    if data.rule not in names:
        text = f"there is no guardian rule {data.rule} here; there are {', '.join(names)}"
        return Problem(code=Code.NOT_FOUND, message=text, field="rule")
    if not known:
        return Problem(code=Code.NOT_FOUND, message=f"there is no sandbox {data.sandbox}", field="sandbox")
    return None


def event_of(data: MuteRule | UnmuteRule, delivery: Delivery) -> MonitorRuleMuted | MonitorRuleUnmuted:
    """The event of a command that is carried out. `seconds` count from the time when the broker stored the command."""
    if isinstance(data, UnmuteRule):
        return MonitorRuleUnmuted(rule=data.rule, unmuted_by=data.unmuted_by)
    until = None if data.seconds is None else delivery.at + timedelta(seconds=data.seconds)
    return MonitorRuleMuted(rule=data.rule, until=until, muted_by=data.muted_by)
