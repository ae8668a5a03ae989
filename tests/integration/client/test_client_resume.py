"""Commands resume an earlier task, with real services, sandboxes and agents."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from sandherd.client import Herd, HerdError
from sandherd.contracts.errors import Code
from sandherd.contracts.events import ArtifactRef
from sandherd.contracts.specs import TaskSpec
from sandherd.contracts.states import SANDBOX_ENDED, TaskState
from sandherd.contracts.subjects import ARTIFACT, Principal
from sandherd.stack.broker import Broker
from tests.drivers.toolchains import TOOLCHAINS, interpreter
from tests.models.anthropic import AnthropicModel, anthropic_model
from tests.models.anthropic_answers import calls, writes
from tests.stored_history import all_stored

pytestmark = [pytest.mark.agents, pytest.mark.timeout(900)]

SCRIPTED_ACP = Path(__file__).parents[2] / "drivers" / "acp" / "scripted_agent.py"
KEY = "sk-ant-scripted-key"
Run = Callable[..., Awaitable[tuple[int, str, str]]]


@pytest.fixture(autouse=True)
def toolchains(tmp_path: Path) -> None:
    """The agents' SDKs, in the folder where this test's spawner looks for them."""
    for kind in ("acp", "claude"):
        interpreter(kind)
    (tmp_path / "toolchains").symlink_to(TOOLCHAINS)


@pytest.fixture(autouse=True)
async def at_rest(toolchains: None, real: Herd) -> AsyncIterator[None]:
    """Wait after each test until no sandbox lives."""
    yield
    for view in (await real.sandboxes()).items:
        if view.state not in SANDBOX_ENDED:
            with suppress(HerdError):  # it may have ended in the meantime
                await real.terminate(view.sandbox)
            await gone(real, view.sandbox)


async def gone(herd: Herd, sandbox: str) -> None:
    """Wait until a sandbox has ended."""
    async with herd.follow(sandbox=sandbox) as events:
        async for _ in events:
            pass


@pytest.fixture
async def model() -> AsyncIterator[AnthropicModel]:
    async with anthropic_model() as model:
        yield model


@pytest.fixture
def sandherd(started: Callable[..., Any]) -> Run:
    """A function that runs the command as a separate process; returns its status, output and errors."""

    async def run(*words: str) -> tuple[int, str, str]:
        process = await started(*words)
        out, err = await process.communicate()
        return process.returncode, out.decode(), err.decode()

    return run


@pytest.fixture
def claude(sandherd: Run, model: AnthropicModel) -> Callable[..., Awaitable[str]]:
    """A function that has Claude complete a task, as a user would; returns the task's name."""

    async def run(text: str, *options: str) -> str:
        env = ("--env", f"ANTHROPIC_BASE_URL={model.url}", "--secret-env", f"ANTHROPIC_API_KEY={KEY}")
        status, out, err = await sandherd("run", text, "--harness", "claude", *env, *options)
        assert status == 0, out + err
        return out.split()[0]

    return run


def acp(text: str, *arguments: str, **fields: Any) -> TaskSpec:
    """Submit a task for the scripted agent behind the Agent Client Protocol."""
    argv = ["/sandbox/toolchains/acp/bin/python", "agent.py", *arguments]
    files = {"agent.py": SCRIPTED_ACP.read_text()}
    return TaskSpec.model_validate({"text": text, "harness": {"kind": "acp", "argv": argv}, "files": files, **fields})


async def session(herd: Herd, task: str) -> str | None:
    """The session of a task."""
    found: str | None = (await herd.task(task)).result["session_id"]
    return found


async def edited(herd: Herd, task: str) -> set[str]:
    """The files that an earlier agent of the task has changed, as the agent reads them."""
    await all_stored(herd)
    return {s.envelope["data"]["file_path"] async for s in herd.events(task=task, types=["agent.file_edited"])}


async def forget(broker: Broker) -> None:
    """Let the spawner delete the records of all tasks and sandboxes, as it does a day after their end."""
    async with broker.bus(Principal.SPAWNER) as bus:
        for bucket in ("tasks", "sandboxes"):
            retained = await bus.js.key_value(bucket)
            for key in await retained.keys():
                await retained.purge(key)


async def test_conversation_is_resumed_in_another_task(
    real: Herd, claude: Callable[..., Awaitable[str]], model: AnthropicModel
) -> None:
    """The model gets the first task's messages; a fork has its own session, which the first does not know."""
    model.script(*(writes(word) for word in ("one", "two", "three", "four")))
    first = await claude("remember the pelican")
    second = await claude("and the heron", "--resume", first)
    assert await session(real, second) == await session(real, first)
    fork = await claude("now the stork", "--resume", second, "--fork")
    assert await session(real, fork) != await session(real, first)
    await claude("which birds?", "--resume", first)
    known = [
        {bird for bird in ("pelican", "heron", "stork") if bird in requested.words} for requested in model.requests
    ]
    assert known == [{"pelican"}, {"pelican", "heron"}, {"pelican", "heron", "stork"}, {"pelican"}]
    await all_stored(real)
    submitted = [stored.envelope["data"] async for stored in real.events(task=fork, types=["task.submitted"])]
    assert [data["resumes"] for data in submitted] == [second]


async def test_cleared_failed_task_is_resumed_with_its_work(
    real: Herd, herd: Broker, sandherd: Run, claude: Callable[..., Awaitable[str]], model: AnthropicModel
) -> None:
    """The work tree is restored, without any secret of the first task."""
    model.script(calls("Bash", command="echo half >work.txt; echo $ANTHROPIC_API_KEY >key.txt"))
    spec = TaskSpec.model_validate(
        {
            "text": "remember the pelican",
            "harness": {"kind": "claude", "max_turns": 1},
            "env": {"ANTHROPIC_BASE_URL": model.url, "ANTHROPIC_API_KEY": KEY},
            "secret_env": ["ANTHROPIC_API_KEY"],
        }
    )
    first = await real.submit(spec)
    view = await real.wait(first)
    assert view.state is TaskState.FAILED
    await gone(real, str(view.sandbox))
    found = await real.session_of(first)
    assert found.work is not None
    assert KEY not in found.model_dump_json()
    await forget(herd)
    model.script(calls("Bash", command="cat work.txt >seen.txt; cp work.txt $(cat work.txt).txt"), writes("done"))
    second = await claude("go on", "--resume", first)
    assert "pelican" in model.requests[-1].words
    assert KEY not in model.requests[-1].words
    assert await edited(real, second) == {"seen.txt", "half.txt"}


async def test_session_of_self_storing_agent_is_loaded_by_id(real: Herd) -> None:
    """`session/load` or a fork is used if the agent supports it and finds the session; else the task is refused."""
    retained: dict[str, Any] = {"keep_work": True, "env": {"SCRIPTED_SESSIONS": "."}}
    first = await real.submit(acp("tool t1 execute {}\nsh t1 echo pelican >made.txt", **retained))
    assert (await real.wait(first)).state is TaskState.COMPLETED
    resume = await real.session_of(first)
    assert (resume.session_id, resume.transcript) == ("sess-1", None)
    second = await real.submit(
        acp("tool t1 execute {}\nsh t1 cp made.txt again.txt\nprompts", resume=resume, **retained)
    )
    assert (await real.wait(second)).result["session_id"] == "sess-1"
    assert "echo pelican" in (await real.task(second)).result["final_output"]
    assert await edited(real, second) == {"again.txt", "sess-1.json"}
    bare = await real.submit(acp("say again", resume=await real.session_of(first, work=False), **retained))
    view = await real.wait(bare)
    assert (view.state, view.error_type, "start again" in str(view.error)) == (TaskState.FAILED, "start", True)
    forked = await real.submit(acp("say other", "forks", resume=await real.session_of(first, fork=True)))
    assert (await real.wait(forked)).result["session_id"] == "sess-1-fork"
    can_not = await real.submit(acp("say other", resume=await real.session_of(first, fork=True)))
    view = await real.wait(can_not)
    assert (view.state, view.error_type, view.attempt) == (TaskState.FAILED, "start", 1)
    assert "can't fork a session" in str(view.error)


async def test_tasks_of_a_file_go_on_from_an_earlier_one(real: Herd, sandherd: Run, tmp_path: Path) -> None:
    """Each task resumes in its own way; if one has nothing to resume, none is sent, and `run` states a remedy."""
    first = await real.submit(acp("say hello"))
    await real.wait(first)
    spec = acp("say again", "forks").model_dump(mode="json")
    file = tmp_path / "tasks.json"
    tasks = [{"name": "on", **spec, "resume": first}, {"name": "fork", **spec, "resume": {"task": first, "fork": True}}]
    file.write_text(json.dumps({"tasks": [*tasks, {"name": "never", **spec, "resume": "task-never"}]}))
    status, out, err = await sandherd("tasks", "submit", str(file), "-o", "json")
    assert (status != 0, out, "there is no task task-never" in err) == (True, "", True)
    file.write_text(json.dumps({"tasks": tasks}))
    status, out, err = await sandherd("tasks", "submit", str(file), "-o", "json")
    assert status == 0, err
    views = [await real.wait(one["task"]) for one in json.loads(out)["tasks"]]
    assert [view.result["session_id"] for view in views] == ["sess-1", "sess-1-fork"]
    await check_impossible_resume_is_refused_with_the_name(real, sandherd, first)


async def check_impossible_resume_is_refused_with_the_name(real: Herd, sandherd: Run, done: str) -> None:
    """Check a task that is unknown, without a session, or of another kind."""
    program = await real.submit("talk", ["true"])
    await real.wait(program)
    status, _, err = await sandherd("run", "go on", "--harness", "claude", "--resume", "task-never")
    assert (status != 0, "there is no task task-never" in err) == (True, True)
    status, _, err = await sandherd("run", "go on", "--harness", "claude", "--resume", program)
    assert (status != 0, f"{program} uses the harness command, which has no session" in err) == (True, True)
    status, _, err = await sandherd("run", "go on", "--harness", "claude", "--fork")
    assert (status != 0, "name the earlier task with --resume TASK" in err) == (True, True)
    status, _, err = await sandherd("run", "go on", "--harness", "claude", "--resume", done)
    assert (status != 0, f"use the harness of {done}" in err) == (True, True)
    with pytest.raises(HerdError) as caught:
        await real.session_of(done, attempt=7)
    assert caught.value.problem.code is Code.NOT_FOUND


async def test_running_session_is_forked_and_not_resumed(real: Herd) -> None:
    """The client refuses to resume it before sending, and the spawner too; a fork has the earlier messages."""
    lingers = await real.submit(acp("say hello", linger_seconds=600))
    async with real.follow(task=lingers) as events:
        async for event in events:
            if event.type == "agent.waiting":
                break
    sandbox = str((await real.task(lingers)).sandbox)
    resume = await real.session_of(lingers)
    for stdout_text in (
        resume,
        resume.model_copy(update={"sandbox": "sbx-other", "fork": True, "work": _of_another(sandbox)}),
    ):
        refused = await real.submit(acp("say again", resume=stdout_text))
        with pytest.raises(HerdError) as caught:
            await real.wait(refused)
        assert caught.value.problem.field == "spec.resume"
    works = await real.submit(acp("wait"))
    async with real.follow(task=works) as events:
        async for event in events:
            if event.type == "agent.turn_started":
                break
    with pytest.raises(HerdError, match="can't continue in two places") as caught:
        await real.session_of(works)
    assert caught.value.problem.code is Code.CONFLICT
    forced = resume.model_copy(update={"task": works, "sandbox": str((await real.task(works)).sandbox)})
    name = await real.submit(acp("say again", resume=forced))
    with pytest.raises(HerdError, match="has not ended"):
        await real.wait(name)
    forked = await real.submit(acp("say other", "forks", resume=forced.model_copy(update={"fork": True})))
    assert (await real.wait(forked)).state is TaskState.COMPLETED


def _of_another(sandbox: str) -> ArtifactRef:
    subject = ARTIFACT.fill(project="default", sandbox=sandbox, artifact="art-1")
    return ArtifactRef(artifact="art-1", subject=subject, size=1, sha256="0" * 64, chunks=1)
