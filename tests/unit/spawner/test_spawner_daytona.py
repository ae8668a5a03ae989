"""Names, states and headers in the Daytona adapter."""

import asyncio
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from daytona import AsyncDaytona, DaytonaConfig, DaytonaRateLimitError
from daytona_api_client_async import SandboxState
from hypothesis import given
from hypothesis import strategies as st

from sandherd.contracts.specs import SandboxLimits
from sandherd.settings import MASK, Settings, load
from spawner.runtimes.boxes.provider import BoxSpec, BoxState, ProgramEnd, ProviderError, ProviderFault
from spawner.runtimes.boxes.runtime import BoxRuntime
from spawner.runtimes.contract import RuntimeFailedError
from spawner.runtimes.daytona import sandboxes, scripts
from spawner.runtimes.daytona.faults import DaytonaFaults, wait_of, within
from spawner.runtimes.daytona.provider import DaytonaProvider
from spawner.runtimes.registry import open_runtimes
from tests.patience import PATIENCE

SECRET = "dtn_1f2e3d4c"


@pytest.mark.parametrize(
    ("headers", "wait"),
    [
        ({}, None),
        ({"Retry-After": "3"}, 3),
        ({"retry-after-authenticated": "3", "Retry-After-sandbox-create": "7"}, 7),
        ({"X-RateLimit-Reset-authenticated": "9"}, 9),
        (
            {
                "X-RateLimit-Reset-create": "4",
                "X-RateLimit-Remaining-create": "0",
                "X-RateLimit-Reset-other": "60",
                "X-RateLimit-Remaining-other": "10",
            },
            4,
        ),
        ({"Retry-After": "soon"}, None),
        ({"Retry-After": "-1"}, None),
        ({"Retry-After": "inf"}, None),
    ],
)
def test_wait_is_read_from_the_throttlers_header(headers: dict[str, str], wait: float | None) -> None:
    """The longest wait of the named headers counts; without one, the reset of the exhausted limits."""
    assert wait_of(headers) == wait


def test_provider_error_contains_no_secret() -> None:
    """The error has neither configured secrets nor what resembles one, nor the SDK's error with its headers."""
    with pytest.raises(ProviderError) as caught, DaytonaFaults(["a-token-of-ours"]).faults("trying"):
        raise DaytonaRateLimitError(
            f"a-token-of-ours {SECRET} Bearer abc https://u:p@host/?token=xyz", headers={"Authorization": SECRET}
        )
    error = caught.value
    assert (error.fault, error.__cause__) == (ProviderFault.RATE_LIMITED, None)
    assert str(error) == f"daytona: trying: {MASK} {MASK} Bearer {MASK} https://{MASK}@host/?token={MASK}"


def test_key_is_shown_nowhere() -> None:
    """No repr of the settings or of the adapter's objects contains the key."""
    loaded = load(environ={"DAYTONA_API_KEY": SECRET})
    rows = {name: value for name, _, value, _ in loaded.rows()}
    assert rows["daytona_api_key"] == MASK
    assert SECRET not in repr(loaded.settings) + repr(sandboxes.DaytonaOptions.of(loaded.settings))


@given(words=st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)))
def test_argument_reaches_a_script_unchanged(words: list[str]) -> None:
    """A shell that splits the line yields the argument, whatever it contains."""
    assert shlex.split(scripts.command_line("true", *words))[4:] == words


@pytest.mark.parametrize("shell", ["/bin/sh", "bash"])
@pytest.mark.parametrize(
    "script",
    [
        scripts.SUPERVISE,
        scripts.READ_STATE,
        scripts.AWAIT_RUN,
        scripts.STOP,
        scripts.RUN_COMMAND,
        scripts.SETUP,
        scripts.MOVE_UPLOADS,
    ],
)
def test_scripts_are_valid_in_every_shell(shell: str, script: str) -> None:
    """No shell finds a mistake in a script."""
    read = subprocess.run([shell, "-n", "-c", script], capture_output=True, text=True, check=False)
    assert (read.returncode, read.stderr) == (0, "")


@pytest.mark.parametrize(
    ("output", "life"),
    [
        ("runs 0\n", scripts.DaytonaProgramState(0)),
        ("runs 2\nalive\n", scripts.DaytonaProgramState(2)),
        ("runs 1\nended 137 1\nlast words\n", scripts.DaytonaProgramState(1, ProgramEnd(137, True, "last words"))),
        ("runs 1\nended x y\n", scripts.DaytonaProgramState(1, ProgramEnd(None))),
        ("runs 1\nlost 1\n", scripts.DaytonaProgramState(1, ProgramEnd(None, True, "it ended without an exit status"))),
    ],
)
def test_state_of_script_is_parsed(output: str, life: scripts.DaytonaProgramState) -> None:
    """The script's output is parsed; any other output raises."""
    assert scripts.parse_state(output) == life
    with pytest.raises(ValueError, match="sh: not found"):
        scripts.parse_state("sh: not found")


def test_end_of_a_program_survives_in_a_label() -> None:
    """The label has the exit status, and whether the program ended because it was out of memory."""
    for end in (ProgramEnd(0), ProgramEnd(137, out_of_memory=True), ProgramEnd(None)):
        found = sandboxes.parse_end(sandboxes.format_end(end))
        assert (found.code, found.out_of_memory) == (end.code, end.out_of_memory)


@pytest.mark.parametrize("state", [*SandboxState])
def test_every_state_of_the_api_is_mapped(state: SandboxState) -> None:
    """Every state of the API has a state of a box: if neither running nor ended, it is starting."""
    shown: Any = SimpleNamespace(
        name="sbx",
        id="1",
        labels={"sandherd.dev/runs": "1", "other": "x"},
        state=state,
        error_reason=None,
        created_at=None,
    )
    box = sandboxes.box(shown, None)
    gone = {BoxState.STOPPED, BoxState.FAILED}
    assert (box.end is not None) == (box.state in gone)
    assert box.labels == {"sandherd.dev/runs": "1"}


async def test_time_limit_holds_despite_a_swallowed_cancellation() -> None:
    """A task that swallows the first cancellation, as the SDK sometimes does, ends at the next one."""
    received = 0

    async def deaf() -> None:
        nonlocal received
        while received < 2:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                received += 1

    async with asyncio.timeout(PATIENCE):
        with pytest.raises(TimeoutError):
            await within(0.01, deaf())
    assert received == 2


async def test_missing_library_is_reported_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the extra to install."""
    monkeypatch.setitem(sys.modules, "spawner.runtimes.daytona.factory", None)
    with pytest.raises(RuntimeFailedError, match=r"sandherd-spawner\[daytona\]"):
        await open_runtimes(Settings(runtime="daytona"))


def test_cores_unavailable_in_a_snapshot_are_refused() -> None:
    """No limit is accepted and then not enforced; without a request the snapshot's own apply."""
    rest: dict[str, Any] = {"labels": {}, "program": ["true"], "environment": {}, "files": [], "stop_grace": 1.0}
    spec = BoxSpec(name="sbx-1", image=None, limits=SandboxLimits(cores=2), **rest)
    kind = sandboxes.DaytonaOptions(snapshot="small")
    with pytest.raises(ProviderError, match="the snapshot small defines its own cores") as caught:
        sandboxes.from_snapshot(spec, kind, "small")
    assert caught.value.fault is ProviderFault.REFUSED
    assert sandboxes.from_snapshot(replace(spec, limits=SandboxLimits()), kind, "small").snapshot == "small"


@pytest.mark.parametrize(("snapshot", "memory"), [("small", "none"), (None, "provider")])
async def test_memory_limit_is_declared_only_for_images(snapshot: str | None, memory: str) -> None:
    """A snapshot has its own memory, whatever a spec requests."""
    daytona = AsyncDaytona(DaytonaConfig(api_key=SECRET, api_url="http://127.0.0.1:9/api", target="us"))
    runtime = BoxRuntime(
        DaytonaProvider(daytona, sandboxes.DaytonaOptions(snapshot=snapshot, image="some/image")), "herd"
    )
    assert runtime.capabilities.memory == memory
    await runtime.close()


def test_program_that_ends_during_a_look_has_its_exit_status(tmp_path: Path) -> None:
    """If the process has ended by the time its exit status is read, it has written the status before."""
    (tmp_path / "1.pid").write_text("1 2 boot 0\n")
    ends = 'living() { echo "7 0" > "$folder/1.exit"; return 1; }\n'
    script = (
        f"folder=$1\n{scripts.READ_STATE.replace(chr(10) + 'print_state() {', chr(10) + ends + 'print_state() {', 1)}"
    )
    done = subprocess.run(["/bin/sh", "-c", script, "sh", tmp_path], capture_output=True, text=True, check=True)
    assert scripts.parse_state(done.stdout) == scripts.DaytonaProgramState(1, ProgramEnd(7, reason=""))
