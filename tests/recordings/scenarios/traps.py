"""Difficult cases from real sessions: calls of several sub-agents, bisections, polls by new ids, and relapses."""

# ruff: noqa: E501  # texts of models and of tools are on one line

from tests.recordings.scenario import (
    Edit,
    Read,
    Run,
    Scenario,
    Step,
    Subagent,
    Tool,
    agent_text,
    flat,
    marked,
    scenario,
    step,
)
from tests.recordings.scenarios.errors import CONFIG
from tests.recordings.scenarios.repetition import SHOP
from tests.recordings.scenarios.steering import NUDGE

PARTS = ("api", "setup", "faq", "style", "tests")
DOCS = {f"docs/{part}.md": f"# {part}\n\nText about {part}.\n" for part in PARTS}


def _delegated(steps: dict[str, list[Step]], end: str) -> tuple[Step, ...]:
    return flat(
        step(*[Subagent(name, f"Review docs/{name}.md.") for name in steps]),
        agent_text("I wait for the reviews."),
        [agent_text(end)] * 6,
    )


@scenario
def healthy_five_subagents() -> Scenario:
    scripts = {
        part: [
            step(Run("ls -R docs"), text="I look around."),
            step(Read("docs/style.md")),
            step(Read(f"docs/{part}.md")),
            step(Run(f"wc -w docs/{part}.md")),
            agent_text(f"The document {part} follows the style."),
        ]
        for part in PARTS
    }
    return Scenario(
        name="healthy-five-subagents",
        task="Let five sub-agents check the documents in docs against docs/style.md.",
        kind="review",
        tree=DOCS,
        imitates="loop",
        note="Five parallel sub-agents make the same listing and read the same file: each only once.",
        scripts={name: tuple(script) for name, script in scripts.items()},
        steps=_delegated(scripts, "All five documents follow the style."),
    )


@scenario
def loop_in_a_subagent() -> Scenario:
    scripts = {
        "api": [
            *marked([step(Run("grep -n TODO docs/api.md docs/faq.md"), text="I search.")] * 9),
            agent_text("There is none."),
        ],
        "faq": [step(Read(f"docs/{part}.md")) for part in PARTS] + [agent_text("The document faq is correct.")],
    }
    return Scenario(
        name="loop-in-a-subagent",
        task="Let two sub-agents review docs/api.md and docs/faq.md.",
        kind="review",
        tree=DOCS,
        rule="loop",
        note="One of two parallel sub-agents makes the same search nine times; the other one reads five files meanwhile.",
        may=("error_streak", "no_progress"),
        scripts={name: tuple(script) for name, script in scripts.items()},
        steps=_delegated(scripts, "Both documents are correct."),
    )


@scenario
def healthy_poll_by_new_ids() -> Scenario:
    return Scenario(
        name="healthy-poll-by-new-ids",
        harness="acp",
        task="Run the long test suite and report its result.",
        kind="research",
        imitates="repeat_varied",
        note="A terminal is asked for output nine times, 45 s apart, by a session id that is new each time.",
        steps=flat(
            step(
                Tool(
                    "exec_command",
                    {"cmd": "make -k test", "yield_time_ms": 1000, "result": "Process running with session ID 52118"},
                )
            ),
            [
                step(
                    Tool(
                        "write_stdin",
                        {
                            "session_id": 52118 + 977 * n,
                            "chars": "",
                            "yield_time_ms": 45_000,
                            "result": f"Chunk ID: {n * 7919 % 4096:03x}c1\nWall time: 45.00{n} seconds\nProcess running with session ID {52118 + 977 * (n + 1)}",
                        },
                    ),
                    clock=45,
                )
                for n in range(9)
            ],
            step(
                Tool(
                    "write_stdin",
                    {"session_id": 60911, "chars": "", "result": "412 passed in 402.71s\nProcess exited with code 0"},
                ),
                clock=45,
            ),
            agent_text("412 tests pass."),
        ),
    )


@scenario
def healthy_bisect() -> Scenario:
    commits = " && ".join(f"echo 'SIZE = {n}' > size.py && git commit -qam 'Size {n}'" for n in range(1, 101))
    round_ = Run("pytest -q && git bisect good || git bisect bad")
    return Scenario(
        name="healthy-bisect",
        task="Find the commit that broke tests/test_size.py.",
        kind="research",
        tree={
            "size.py": "SIZE = 0\n",
            "tests/test_size.py": "import size\n\n\ndef test_size():\n    assert size.SIZE < 62\n",
        },
        setup=f"git init -q -b main . && git add . && git commit -qm Begin && {commits}",
        imitates="loop",
        note="The same command seven times while git bisects: hashes and numbers in its results differ, and the files do.",
        steps=flat(
            step(Run("git log --oneline | wc -l")),
            step(Run("pytest -q")),
            step(Run("git bisect start HEAD HEAD~100")),
            [step(round_, text="The next one.")] * 7,
            step(Run("git bisect log | tail -n 1")),
            step(Run("git bisect reset")),
            agent_text("The commit 'Size 62' broke it."),
        ),
    )


@scenario
def steering_ignored_after_a_break() -> Scenario:
    run = step(Run("pytest -q tests/test_cart.py"), text="I run the test.")
    return Scenario(
        name="steering-ignored-after-a-break",
        harness="openhands",
        task="Fix the failing test of the cart.",
        tree=SHOP,
        rule="steering_ignored",
        note="A test run five times; a nudge; one other call; then the same run seven times more.",
        may=("loop", "error_streak", "no_progress"),
        steps=flat(
            step(Read("tests/test_cart.py")),
            [run] * 4,
            run.while_sending(NUDGE),
            step(Read("shop/cart.py"), text="I look at the class."),
            marked([run] * 7),
            agent_text("It fails."),
        ),
    )


@scenario
def error_streak_of_parallel_calls() -> Scenario:
    def edits(start: int) -> Step:
        return step(
            *[Edit("app/config.py", f"OPTION-{n} = {n}\n", f"OPTION-{n} = 0\n") for n in range(start, start + 3)]
        )

    return Scenario(
        name="error-streak-of-parallel-calls",
        task="Set the options in app/config.py to 0.",
        tree=CONFIG,
        rule="error_streak",
        note="Six responses with three parallel edits each, all of which fail for the same reason.",
        steps=flat(
            step(Read("app/config.py")),
            marked([edits(3 * n) for n in range(6)]),
            agent_text("The options could not be set."),
        ),
    )
