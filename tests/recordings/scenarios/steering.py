"""Messages of the monitor, and calls that take long."""

# texts of models and of tools are on one line

from tests.recordings.scenario import (
    Edit,
    Read,
    Refusal,
    Run,
    Scenario,
    Send,
    Subagent,
    Write,
    agent_text,
    fault,
    flat,
    marked,
    scenario,
    step,
)
from tests.recordings.scenarios.repetition import JS, SHOP
from tests.recordings.scenarios.stand_ins import CARGO, HANG, NPM

NUDGE = Send(
    "You repeat the same call with the same result. Change something first, or do something else.",
    "guardian_nudge",
    "guardian",
)


@scenario
def steering_ignored_loop() -> Scenario:
    run = step(Run("pytest -q tests/test_cart.py"), text="I run the test.")
    return Scenario(
        name="steering-ignored-loop",
        task="Fix the failing test of the cart.",
        tree=SHOP,
        rule="steering_ignored",
        note="A test run five times; a nudge; the same run eight times more.",
        may=("loop", "error_streak", "no_progress"),
        steps=flat(
            step(Read("shop/cart.py")),
            [run] * 4,
            run.while_sending(NUDGE),
            fault(run),
            [run] * 7,
            agent_text("It fails."),
        ),
    )


@scenario
def steering_ignored_errors() -> Scenario:
    nudge = Send("These edits fail for the same reason. Read the file again first.", "guardian_nudge", "guardian")

    def edit(number: int) -> Edit:
        return Edit("shop/cart.py", f"def total_{number}", f"def sum_{number}")

    return Scenario(
        name="steering-ignored-errors",
        harness="openhands",
        task="Rename the methods of the cart.",
        tree=SHOP,
        rule="steering_ignored",
        note="Four edits fail for one reason; a nudge; six more fail for the same one.",
        may=("error_streak", "loop"),
        steps=flat(
            step(Read("shop/cart.py")),
            [step(edit(number)) for number in range(3)],
            step(edit(3)).while_sending(nudge),
            marked([step(edit(number)) for number in range(4, 10)]),
            agent_text("It did not work."),
        ),
    )


@scenario
def steering_obeyed() -> Scenario:
    run = step(Run("pytest -q tests/test_cart.py"), text="I run the test.")
    return Scenario(
        name="steering-obeyed",
        task="Fix the failing test of the cart.",
        tree=SHOP,
        rule="loop",
        imitates="steering_ignored",
        note="A test run six times; a nudge; then the agent corrects the test, and runs it twice with other results.",
        may=("error_streak",),
        steps=flat(
            step(Read("tests/test_cart.py")),
            marked([*[run] * 5, run.while_sending(NUDGE)]),
            step(Read("shop/cart.py"), text="I look at the class instead."),
            step(Edit("tests/test_cart.py", "== 4", "== 5")),
            run,
            step(Edit("tests/test_cart.py", "== 5", "== 3")),
            run,
            agent_text("It passes."),
        ),
    )


@scenario
def healthy_nudged_for_no_reason() -> Scenario:
    note = Send("Your task has used half of its budget.", "system", "monitor")
    nudge = Send("Check your work before you end.", "guardian_nudge", "guardian")
    return Scenario(
        name="healthy-nudged-for-no-reason",
        task="Rename total to sum_of_prices.",
        tree=SHOP,
        imitates="steering_ignored",
        note="A system note and a nudge arrive while the agent works normally, and it goes on so.",
        steps=flat(
            step(Read("shop/cart.py"), Read("tests/test_cart.py")),
            step(Edit("shop/cart.py", "def total", "def sum_of_prices")).while_sending(note),
            step(Run("pytest -q")),
            step(Edit("tests/test_cart.py", "cart.total() == 4", "cart.sum_of_prices() == 3")).while_sending(nudge),
            step(Run("pytest -q")),
            step(Run("grep -rn total . --include=*.py")),
            agent_text("It is renamed."),
        ),
    )


@scenario
def long_call_lock() -> Scenario:
    return Scenario(
        name="long-call-lock",
        task="Migrate the database.",
        tree={"migrations/001.sql": "alter table orders add note text;\n"},
        setup="echo 2400 > ../.hang",
        programs={"migrate": HANG},
        env={"BASH_DEFAULT_TIMEOUT_MS": "7200000", "BASH_MAX_TIMEOUT_MS": "7200000"},
        rule="stuck",
        note="A migration waits 40 minutes for a lock.",
        steps=flat(
            step(Read("migrations/001.sql")),
            fault(step(Run("migrate up"), text="I apply it.")),
            agent_text("The table is locked."),
        ),
    )


@scenario
def long_call_server() -> Scenario:
    return Scenario(
        name="long-call-server",
        harness="acp",
        task="See whether the page loads.",
        tree=JS,
        programs={"serve": "pause(3600)\nprint('VITE v7.1.3  ready in 412 ms\\n  Local: http://localhost:5173/')\n"},
        rule="stuck",
        note="A server is started in the foreground, and the call does not return for an hour.",
        steps=flat(
            step(Read("package.json")),
            fault(step(Run("serve --port 5173"), text="I start the server.")),
            agent_text("The server has ended."),
        ),
    )


@scenario
def healthy_long_program() -> Scenario:
    return Scenario(
        name="healthy-long-program",
        harness="command",
        task="Convert the 40 parts.",
        tree={f"part{n}.txt": f"part {n}\n" for n in range(40)},
        programs={"make": "print('40 parts checked')\n"},
        imitates="stuck",
        note="The program itself is a call of 53 minutes, in which it reports 81 short ones.",
        steps=flat(
            *[
                [step(Read(f"part{n}.txt"), clock=40), step(Write(f"part{n}.txt", f"PART {n}\n"), clock=40)]
                for n in range(40)
            ],
            step(Run("make check")),
            step(text="All parts are converted."),
        ),
    )


@scenario
def healthy_long_build() -> Scenario:
    return Scenario(
        name="healthy-long-build",
        task="Build the release and test it.",
        tree={"src/main.rs": "fn main() {}\nfn test_main() {}\n"},
        programs={"cargo": CARGO, "build-release": "pause(540)\nprint('    Finished `release` profile in 8m 59s')\n"},
        env={"BASH_DEFAULT_TIMEOUT_MS": "1800000"},
        imitates="stuck",
        note="A release build takes nine minutes, then the tests run.",
        steps=flat(
            step(Read("src/main.rs")),
            step(Run("build-release --lto"), text="This takes a while."),
            step(Edit("src/main.rs", "fn main() {}", "fn main() { }")),
            step(Run("cargo test")),
            agent_text("The release is built."),
        ),
    )


@scenario
def healthy_waits_for_approval() -> Scenario:
    return Scenario(
        name="healthy-waits-for-approval",
        task="Publish the package.",
        tree=JS,
        programs={"npm": NPM},
        refusals=(Refusal("npm run publish", "", 2700, granted=True),),
        imitates="stuck",
        note="The agent waits 45 minutes for the approval of one call, which then takes a second.",
        steps=flat(
            step(Read("package.json")),
            step(Run("npm test")),
            step(Run("npm run publish")),
            agent_text("It is published."),
        ),
    )


@scenario
def healthy_long_subagent() -> Scenario:
    return Scenario(
        name="healthy-long-subagent",
        task="Let a sub-agent read all parts, and report.",
        kind="research",
        tree={f"part{n}.txt": f"part {n}\n" for n in range(20)},
        imitates="stuck",
        note="A sub-agent works for 20 minutes: its call is open, but it makes a call each minute.",
        scripts={
            "reader": flat(
                [step(Read(f"part{n}.txt"), clock=60) for n in range(20)], agent_text("All parts have one line.")
            ),
        },
        steps=flat(
            step(Subagent("reader", "Read part0.txt to part19.txt.")),
            agent_text("I wait for it."),
            *[agent_text("All parts have one line each.")] * 2,
        ),
    )
