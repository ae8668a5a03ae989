"""Alerts and their runbooks: the rules by promtool, in a real Prometheus, and every command of every page."""

import asyncio
import os
import re
import shlex
import signal
from collections.abc import Iterator
from functools import cache
from typing import Any, Final

import pytest
import typer
import yaml

from sandherd.cli.app import build
from sandherd.cli.exit_status import run_command
from sandherd.stack.control import status
from tests.engines.prometheus import RULES, promtool, rules
from tests.integration.telemetry.conftest import ROOT, Watched

RUNBOOKS: Final = ROOT / "docs" / "runbooks"
TESTS: Final = ROOT / "deploy" / "prometheus" / "tests"
BLOCK: Final = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LABEL: Final = re.compile(r'(\w+)="([^"]*)"')
SERVICES: Final = {"spawner", "event-ingest", "monitor", "message-relay", "gateway"}
FOUND_WRONG: Final = {("doctor", 1), ("audit", 1)}
"""Commands that exit with this status when they find a problem."""


def test_rules_are_valid() -> None:
    """Promtool accepts all rules, templates included."""
    assert f"{len(rules())} rules found" in promtool("check", "rules", *RULES.glob("*.yaml"))


def test_each_alert_fires_on_its_fault_only() -> None:
    """Promtool simulates each fault, and a healthy herd of three hours."""
    assert "SUCCESS" in promtool("test", "rules", *TESTS.glob("*.yaml"))


def test_each_alert_has_a_played_fault() -> None:
    """An alert without a simulated fault would be untested; the healthy herd has every series of the rules."""
    played = "".join(path.read_text() for path in TESTS.glob("*.yaml"))
    fired = [dict(LABEL.findall(labels)) for labels in re.findall(r"ALERTS\{(.*?)\}', value: 1", played)]
    for rule in rules():
        alert = {"alertname": rule["alert"], "alertstate": "firing", **rule["labels"]}
        assert any(alert.items() <= labels.items() for labels in fired), alert
    well = yaml.safe_load(played)["tests"][0]
    series = {match["series"].partition("{")[0] for match in well["input_series"]}
    read = set(re.findall(r"sandherd_\w+", " ".join(rule["expr"] for rule in rules())))
    assert read == series


def blocks(kind: str) -> Iterator[tuple[str, list[str]]]:
    """Every command of every page, in blocks of this kind, as words."""
    for page in sorted(RUNBOOKS.glob("*.md")):
        for tag, text in BLOCK.findall(page.read_text()):
            assert tag in {"sh", "console"}, page.name
            for line in text.splitlines() if tag == kind else ():
                yield (
                    page.name,
                    shlex.split(line.removeprefix("$ ").replace("SANDBOX", "sbx-1").replace("TASK", "task-1")),
                )


def test_inspection_commands_of_runbooks_run(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each command runs once, with a herd."""
    # The command line silences the process's logs, which are also those of other tests.
    monkeypatch.setattr("sandherd.telemetry.logs.configure", lambda *_: None)
    for words in {tuple(words) for _, words in blocks("sh")}:
        program, *rest = words
        assert program == "sandherd"
        ended = run_command(["--home", str(watched.home), *rest])
        assert ended == 0 or (rest[0], ended) in FOUND_WRONG, words


def test_repair_commands_of_runbooks_exist() -> None:
    """The command line parses Sandherd's; other commands name existing services and objects."""
    for page, words in blocks("console"):
        try:
            assert is_command(words)
        except typer.TyperException as error:
            pytest.fail(f"{page}: {shlex.join(words)}: {error}")


def is_command(words: list[str]) -> bool:
    if words[0] == "sandherd":
        return is_ours(words[1:])
    text = " ".join(words)
    service = "|".join(SERVICES)
    known = (
        r"docker compose (ps|up -d)",
        rf"docker compose (logs --since 15m|restart) ({service}|nats|store-guard|postgres|collector)",
        r"kubectl (get|describe) (pods|nodes|events)( -n (sandherd|sandherd-sandboxes))?",
        rf"kubectl (logs|rollout restart) -n sandherd deploy/sandherd-({service})( --since=15m)?",
        rf"kubectl scale -n sandherd deploy/sandherd-({service}) --replicas=\d",
        r"kubectl logs -n nats statefulset/nats -c (nats|store-guard) --since=15m",
    )
    return any(re.fullmatch(pattern, text) for pattern in known)


@cache
def command_line() -> Any:
    """The command line with all commands: creating it takes longer than parsing the commands of all runbooks."""
    return typer.main.get_command(build())


def is_ours(words: list[str]) -> bool:
    """Whether the command line accepts these words. Raises `typer.TyperException`."""
    command = command_line()
    context = command.make_context("sandherd", words)
    while hasattr(command, "resolve_command"):
        name, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        context = command.make_context(name, rest, parent=context)
    return True


def test_working_herd_fires_only_the_caused_alerts(watched: Watched) -> None:
    """A real Prometheus has alerts about dead letters, attempts, and a service while it is stopped, and no others."""
    done, alerts = {"SandherdDeadLetters", "SandherdAttemptsFail"}, watched.prometheus.alerts
    watched.prometheus.until(lambda: {name for name, _ in alerts()} == done, lambda: f"{alerts()}")
    relay = next(part.pid for part in asyncio.run(status(watched.home)).parts if part.name == "message-relay")
    assert relay is not None
    os.kill(relay, signal.SIGSTOP)
    try:
        watched.prometheus.until(
            lambda: ("SandherdServiceUnavailable", "pending") in alerts(), lambda: "nobody misses it"
        )
    finally:
        os.kill(relay, signal.SIGCONT)
    watched.prometheus.until(lambda: {name for name, _ in alerts()} == done, lambda: f"{alerts()}")
