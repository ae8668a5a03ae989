"""What the Daytona adapter makes of words and headers."""

import asyncio
import shlex
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from daytona import AsyncDaytona, DaytonaConfig, DaytonaRateLimitError
from daytona_api_client_async import SandboxState
from hypothesis import given
from hypothesis import strategies as st

from sandherd.contracts.specs import Limits
from sandherd.settings import MASK, Settings, load
from spawner.runtimes.boxes.provider import BoxSpec, BoxState, ProgramEnd, ProviderError, ProviderFault
from spawner.runtimes.boxes.runtime import BoxRuntime
from spawner.runtimes.choosing import open_runtimes
from spawner.runtimes.contract import RuntimeFailedError
from spawner.runtimes.daytona import sandboxes, scripts
from spawner.runtimes.daytona.cloud import Cloud
from spawner.runtimes.daytona.faults import Telling, wait_of
from spawner.runtimes.daytona.patience import within
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
def test_the_wait_stands_in_the_throttlers_own_header(headers: dict[str, str], wait: float | None) -> None:
    """The longest of those that ask for one; without one, when the spent ones begin anew."""
    assert wait_of(headers) == wait


def test_no_secret_is_told() -> None:
    """Neither ours nor what looks like one, nor the SDK's error with its headers."""
    with pytest.raises(ProviderError) as caught, Telling(["a-token-of-ours"]).faults("trying"):
        raise DaytonaRateLimitError(
            f"a-token-of-ours {SECRET} Bearer abc https://u:p@host/?token=xyz", headers={"Authorization": SECRET}
        )
    error = caught.value
    assert (error.fault, error.__cause__) == (ProviderFault.RATE_LIMITED, None)
    assert str(error) == f"daytona: trying: {MASK} {MASK} Bearer {MASK} https://{MASK}@host/?token={MASK}"


def test_the_key_is_shown_nowhere() -> None:
    """Not by the settings, nor by what the adapter makes of them."""
    loaded = load(environ={"DAYTONA_API_KEY": SECRET})
    rows = {name: value for name, _, value, _ in loaded.shown()}
    assert rows["daytona_api_key"] == MASK
    assert SECRET not in repr(loaded.settings) + repr(sandboxes.Kind.of(loaded.settings))


@given(words=st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)))
def test_any_word_reaches_a_script_as_it_is(words: list[str]) -> None:
    """Whatever stands in it, as the shell takes the line apart again."""
    assert shlex.split(scripts.line("true", *words))[4:] == words


@pytest.mark.parametrize("shell", ["/bin/sh", "bash"])
@pytest.mark.parametrize(
    "script",
    [scripts.KEEPER, scripts.LOOK, scripts.AWAIT, scripts.STOP, scripts.BOUNDED, scripts.SETUP, scripts.PLACE],
)
def test_every_shell_can_read_the_scripts(shell: str, script: str) -> None:
    """None of them finds a mistake in one."""
    read = subprocess.run([shell, "-n", "-c", script], capture_output=True, text=True, check=False)
    assert (read.returncode, read.stderr) == (0, "")


@pytest.mark.parametrize(
    ("said", "life"),
    [
        ("runs 0\n", scripts.Life(0)),
        ("runs 2\nalive\n", scripts.Life(2)),
        ("runs 1\nended 137 1\nlast words\n", scripts.Life(1, ProgramEnd(137, True, "last words"))),
        ("runs 1\nended x y\n", scripts.Life(1, ProgramEnd(None))),
        ("runs 1\nlost 1\n", scripts.Life(1, ProgramEnd(None, True, "it is gone without a word"))),
    ],
)
def test_what_is_seen_inside_is_understood(said: str, life: scripts.Life) -> None:
    """In the words of our own script; anything else is nothing."""
    assert scripts.life(said) == life
    with pytest.raises(ValueError, match="sh: not found"):
        scripts.life("sh: not found")


def test_an_end_outlives_the_sandbox_in_its_label() -> None:
    """With its status and whether it was memory."""
    for end in (ProgramEnd(0), ProgramEnd(137, out_of_memory=True), ProgramEnd(None)):
        found = sandboxes.told(sandboxes.telling(end))
        assert (found.code, found.out_of_memory) == (end.code, end.out_of_memory)


@pytest.mark.parametrize("state", [*SandboxState])
def test_every_state_of_the_api_is_one_of_ours(state: SandboxState) -> None:
    """None is unknown: what is neither running nor at an end is on its way."""
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


async def test_a_bound_holds_where_a_cancellation_is_lost() -> None:
    """What swallows the first of them, as the SDK does now and then, ends with the next."""
    heard = 0

    async def deaf() -> None:
        nonlocal heard
        while heard < 2:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                heard += 1

    async with asyncio.timeout(PATIENCE):
        with pytest.raises(TimeoutError):
            await within(0.01, deaf())
    assert heard == 2


async def test_a_library_that_is_absent_is_said_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a spawner has it that was installed without."""
    monkeypatch.setitem(sys.modules, "spawner.runtimes.daytona.opening", None)
    with pytest.raises(RuntimeFailedError, match=r"sandherd-spawner\[daytona\]"):
        await open_runtimes(Settings(runtime="daytona"))


def test_cores_that_a_snapshot_would_not_have_are_refused() -> None:
    """Nothing is taken and then not held to; whoever asks for none has the snapshot's own."""
    rest: dict[str, Any] = {"labels": {}, "program": ["true"], "environment": {}, "files": [], "stop_grace": 1.0}
    spec = BoxSpec(name="sbx-1", image=None, limits=Limits(cores=2), **rest)
    kind = sandboxes.Kind(snapshot="small")
    with pytest.raises(ProviderError, match="cores of the snapshot small") as caught:
        sandboxes.from_snapshot(spec, kind, "small")
    assert caught.value.fault is ProviderFault.REFUSED
    assert sandboxes.from_snapshot(replace(spec, limits=Limits()), kind, "small").snapshot == "small"


@pytest.mark.parametrize(("snapshot", "memory"), [("small", "none"), (None, "provider")])
async def test_memory_is_promised_only_where_it_is_asked_for(snapshot: str | None, memory: str) -> None:
    """A snapshot has its own, whatever a spec says."""
    daytona = AsyncDaytona(DaytonaConfig(api_key=SECRET, api_url="http://127.0.0.1:9/api", target="us"))
    runtime = BoxRuntime(Cloud(daytona, sandboxes.Kind(snapshot=snapshot, image="some/image")), "herd")
    assert runtime.capabilities.memory == memory
    await runtime.close()
