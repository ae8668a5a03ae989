"""Remedies of a refusal: for an existing object, and for one that was never created."""

import ast
import asyncio
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from sandherd.bus.subscription_consumers import SubscriptionTerms, check_project, free_place
from sandherd.cli.commands.subscriptions import with_commands
from sandherd.cli.exit_status import run_command
from sandherd.client.errors import HerdError, from_contract_error, refused_command_error
from sandherd.client.remedy_commands import REMEDY_COMMANDS
from sandherd.contracts.commands import CreateSandbox, ExtendSandbox
from sandherd.contracts.envelope import wrap
from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.events.sandbox import SandboxRefused

ROOT = Path(__file__).parents[3]
LIST, GET = "sandherd sandboxes list", "sandherd sandboxes get sbx-a"


@pytest.mark.parametrize(
    ("command", "field", "code", "expected_text"),
    [
        (CreateSandbox.type, "sandbox", Code.CONFLICT, "use another name"),
        (CreateSandbox.type, "sandbox", Code.BUSY, "wait, or terminate a sandbox"),
        (CreateSandbox.type, None, None, LIST),
        (CreateSandbox.type, "spec.runtime", None, "sandherd runtimes"),
        (ExtendSandbox.type, "sandbox", Code.CONFLICT, GET),
        (ExtendSandbox.type, "sandbox", Code.NOT_FOUND, LIST),
        (ExtendSandbox.type, "seconds", Code.INVALID_FIELD, "use a shorter time"),
    ],
)
def test_refused_sandbox_suggests_no_inspection(
    command: str, field: str | None, code: Code | None, expected_text: str
) -> None:
    """The remedy fits the reason: without capacity no name helps, and what does not exist can't be inspected."""
    event = wrap(
        SandboxRefused(command=command, reason="there is no capacity", field=field, code=code),
        SandboxRefused.type,
        source="/sandherd/spawner/sbx-a",
        sequence=1,
        project="default",
        subject="sbx-a",
        time=datetime(2026, 11, 20, tzinfo=UTC),
    )
    remedy = refused_command_error(event, command).problem.remedy or ""
    assert expected_text in remedy
    assert (GET in remedy) is (expected_text == GET)


class Empty:
    """A herd without sandboxes and tasks; `codes` has the pages for which a browser would be signed in."""

    def __init__(self) -> None:
        self.codes: list[str] = []

    async def sandbox(self, name: str) -> NoReturn:
        raise HerdError.of(Code.NOT_FOUND, f"there is no sandbox {name}", field="sandbox")

    async def task(self, name: str) -> NoReturn:
        raise HerdError.of(Code.NOT_FOUND, f"there is no task {name}", field="task")

    async def tasks(self, **_: Any) -> Any:
        return SimpleNamespace(items=[])

    async def create_code(self, role: str, **_: Any) -> Any:
        self.codes.append(role)
        return SimpleNamespace(text="code", view=SimpleNamespace(url="http://127.0.0.1:9", expires_at=None))


@pytest.mark.parametrize("target", ["sbx-unknown", "absent"])
def test_open_of_an_unknown_name_is_that_error_and_makes_no_link(
    target: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the exit status of `sandboxes get`."""
    herd = Empty()

    def talk(_ctx: Any, work: Callable[[Any], Awaitable[int]], **_: Any) -> int:
        async def done() -> int:
            return await work(herd)

        return asyncio.run(done())

    monkeypatch.setenv("SANDHERD_HOME", str(tmp_path))
    monkeypatch.setattr("sandherd.cli.herd_session.run_with_herd", talk)
    statuses = [run_command(words) for words in (["open", target, "--print"], ["sandboxes", "get", target])]
    shown = capsys.readouterr()
    assert statuses == [1, 1]
    assert shown.err.count(f"there is no sandbox {'' if 'sbx' in target else 'or task '}{target}; ") == 2
    assert (shown.out, herd.codes) == ("", [])
    assert run_command(["open", "--print"]) == 0


def _refusal(act: Callable[[], object]) -> HerdError:
    with pytest.raises(ContractError) as raised:
        act()
    return from_contract_error(raised.value)


def test_refusal_of_a_service_names_no_command_and_the_command_line_adds_it() -> None:
    """Its reader may be a program in any language."""
    full = _refusal(lambda: free_place("mine", [1, 2], SubscriptionTerms(limit=2, ack_wait=30, idle=60)))
    fleet = _refusal(lambda: check_project("fleet"))
    for error in (full, fleet):
        assert "sandherd " not in error.line
        assert "--" not in error.line

    async def refuse() -> NoReturn:
        raise full

    with pytest.raises(HerdError) as raised:
        asyncio.run(with_commands(refuse()))
    assert raised.value.problem.remedy == (
        "delete one that is not needed (with `sandherd subscriptions list`, then `sandherd subscriptions delete`)"
    )


def test_remedy_for_an_existing_subscription_has_each_command_beside_its_words() -> None:
    """It is read once, from its beginning to its end."""

    async def refuse() -> NoReturn:
        remedy = "set `update` to change it, delete it first, or use another name"
        raise HerdError.of(Code.CONFLICT, "subscription copy exists already", field="types", remedy=remedy)

    with pytest.raises(HerdError) as raised:
        asyncio.run(with_commands(refuse()))
    assert raised.value.problem.remedy == (
        "change it with --update, delete it first (`sandherd subscriptions delete`), or use another name"
    )


def test_message_and_remedy_are_joined_without_a_full_stop_between() -> None:
    """Some messages are sentences of several lines."""
    assert HerdError.of(Code.INTERNAL, "it failed.\nThe logs are in /x.", remedy="see them").line == (
        "it failed. The logs are in /x; see them"
    )


def test_line_has_the_command_for_the_remedy_of_a_service() -> None:
    """With the name that the remedy has; a remedy that names a command, and any other one, are unchanged."""
    for remedy, line in {
        "create project p1": "create project p1 (`sandherd projects create p1`)",
        "terminate sandbox sbx-1: it ends": "terminate sandbox sbx-1 (`sandherd sandboxes terminate sbx-1`): it ends",
        "list the tasks; or `sandherd top`": "; list the tasks; or `sandherd top`",
        "use a shorter time": "; use a shorter time",
    }.items():
        assert HerdError.of(Code.CONFLICT, "refused", remedy=remedy).line.endswith(line)


def _remedies(source: Path) -> Iterator[str]:
    """The texts of a module that are passed as `remedy` of a reply, or assigned to that name."""
    for node in ast.walk(ast.parse(source.read_text())):
        named = isinstance(node, ast.keyword) and node.arg == "remedy"
        named |= isinstance(node, ast.Assign) and ast.unparse(node.targets[0]).strip("_").lower().endswith("remedy")
        if named and isinstance(node, ast.keyword | ast.Assign):
            yield ast.unparse(node.value)


def test_services_name_no_command_in_a_remedy_and_each_command_has_its_remedy() -> None:
    """Other than replies: what prevents a service's start, and why a task waits.

    A caller of the gateway may need an operator with the command line: there is no other way to a first token.
    """
    services = ("event-ingest", "message-relay", "monitor", "spawner", "worker")
    folders = [*(ROOT / "services" / name for name in services), ROOT / "libs/sandherd/bus/consumers"]
    files = [
        *(path for folder in folders for path in folder.rglob("*.py")),
        ROOT / "libs/sandherd/service/stream_admin.py",
    ]
    found = [text for path in files if path.name not in {"main.py", "capacity.py"} for text in _remedies(path)]
    assert len(found) > 100
    assert [text for text in found if "sandherd " in text] == []
    for words in REMEDY_COMMANDS:  # test_client_named_commands.py: that each of its commands exists
        assert any(words.removesuffix(" NAME") in text.replace("{kind}", words[9:-1]) for text in found), words
