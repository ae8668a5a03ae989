"""Blocks of calls that repeat, and equal sets of parallel calls."""

# ruff: noqa: E501  # texts of models and of tools are on one line

from tests.recordings.scenario import Edit, Read, Run, Scenario, Subagent, agent_text, flat, scenario, step, times
from tests.recordings.scenarios.repetition import SHOP
from tests.recordings.scenarios.stand_ins import CARGO, CHECKER, NOISY

RUST = {"src/main.rs": 'fn main() {\n    let total: u32 = 0;\n    println!("{total}");\n}\n\nfn test_add() {}\n'}
SERVICE = {"app/service.py": "def load():\n    return 1  # FIXME incompatible return value, line 1\n"}
TOOLS = {"ruff": CHECKER, "mypy": CHECKER}


@scenario
def cycle_test_and_read() -> Scenario:
    return Scenario(
        name="cycle-test-and-read",
        task="Fix the failing test of the cart.",
        tree=SHOP,
        rule="cycle",
        note="The same test and the same file in turns, 6 times, without an edit.",
        may=("loop", "error_streak", "no_progress"),
        steps=flat(
            step(Run("ls shop tests")),
            times(
                6,
                step(Run("pytest -q tests/test_cart.py"), text="I run the test."),
                step(Read("shop/cart.py"), text="I look at the class."),
            ),
            agent_text("The test still fails."),
        ),
    )


@scenario
def cycle_of_three() -> Scenario:
    return Scenario(
        name="cycle-of-three",
        harness="openhands",
        task="Find out why the total is wrong.",
        tree=SHOP,
        rule="cycle",
        note="A search, a file and a listing, in the same order 5 times with equal results.",
        may=("loop", "no_progress"),
        steps=flat(
            times(
                5,
                step(Run("grep -rn total shop"), text="Where is total?"),
                step(Read("shop/cart.py"), text="How is it computed?"),
                step(Run("ls tests"), text="Which tests are there?"),
            ),
            agent_text("I see no error."),
        ),
    )


@scenario
def cycle_with_noise() -> Scenario:
    return Scenario(
        name="cycle-with-noise",
        harness="acp",
        task="Start the worker.",
        tree={"config.toml": "name = 'worker'\n"},
        programs={
            "run-worker": NOISY,
            "worker-status": "print(f'{stamp()} worker pid {random.randint(900, 9000)} dead')\n",
        },
        rule="cycle",
        note="Start, status, configuration, listing: 5 times; time stamps, PIDs and hashes differ.",
        may=("loop", "error_streak"),
        steps=flat(
            times(
                5,
                step(Run("run-worker --daemon")),
                step(Run("worker-status")),
                step(Read("config.toml")),
                step(Run("ls -1")),
            ),
            agent_text("It does not start."),
        ),
    )


@scenario
def healthy_edit_and_test() -> Scenario:
    cart = "class Cart:\n    def total(self):\n        return {0}\n"
    return Scenario(
        name="healthy-edit-and-test",
        task="Implement the twenty steps of the kata in tests/test_kata.py, one after the other.",
        tree={
            "kata.py": "DONE = 0\n",
            "tests/test_kata.py": "import kata\n\n\n"
            + "\n\n".join(
                f"def test_step_{number:02}():\n    assert kata.DONE >= {number}\n" for number in range(1, 21)
            ),
            "shop/cart.py": cart.format(0),
        },
        imitates="cycle",
        note="20 times an edit and the same test run: the content differs each time, and one more test passes.",
        steps=flat(
            step(Read("kata.py"), Read("tests/test_kata.py")),
            *[
                [
                    step(Edit("kata.py", f"DONE = {number - 1}\n", f"DONE = {number}\n")),
                    step(Run("pytest -q -x tests/test_kata.py")),
                ]
                for number in range(1, 21)
            ],
            agent_text("All twenty tests pass."),
        ),
    )


@scenario
def healthy_build_and_run() -> Scenario:
    return Scenario(
        name="healthy-build-and-run",
        harness="acp",
        task="Port the calculator's operations to Rust, and build and test after each of them.",
        tree=RUST,
        programs={"cargo": CARGO},
        imitates="cycle",
        note="30 rounds of edit, build and test; each edit adds another function.",
        steps=flat(
            step(Read("src/main.rs")),
            *[
                [
                    step(Edit("src/main.rs", "fn test_add() {}", f"fn op_{n}() -> u32 {{ {n} }}\nfn test_op_{n}() {{}}\nfn test_add() {{}}")),
                    step(Run("cargo build")),
                    step(Run("cargo test")),
                ]
                for n in range(30)
            ],
            agent_text("All operations are ported."),
        ),
    )  # fmt: skip


@scenario
def fan_out_same_searches() -> Scenario:
    return Scenario(
        name="fan-out-same-searches",
        task="Find every use of the cart's total.",
        tree=SHOP,
        rule="fan_out",
        note="The same three parallel calls in 6 turns, with equal results.",
        may=("loop", "cycle", "no_progress"),
        steps=flat(
            step(Run("ls")),
            times(
                6,
                step(
                    Run("grep -rn total shop"),
                    Run("grep -rn Cart tests"),
                    Read("shop/cart.py"),
                    text="I search in parallel.",
                ),
            ),
            agent_text("It is used in one test."),
        ),
    )


@scenario
def fan_out_in_other_order() -> Scenario:
    one, two, three = Run("cat a.txt"), Run("cat b.txt"), Run("wc -l a.txt b.txt")
    return Scenario(
        name="fan-out-in-other-order",
        harness="acp",
        task="Compare a.txt and b.txt.",
        tree={"a.txt": "1\n2\n", "b.txt": "1\n3\n"},
        rule="fan_out",
        note="The same three parallel calls in 7 turns, each time in another order.",
        may=("loop", "cycle", "no_progress"),
        steps=flat(
            step(Run("ls")),
            times(
                7, step(one, two, three, text="Both files."), step(three, one, two, text="Both files, and their size.")
            )[:7],
            agent_text("They differ in one line."),
        ),
    )


@scenario
def healthy_duplicates_in_one_turn() -> Scenario:
    return Scenario(
        name="healthy-duplicates-in-one-turn",
        task="Describe the module shop.",
        kind="research",
        tree=SHOP,
        imitates="fan_out",
        note="One turn calls the same read 6 times in parallel, as models do; the next turns are new calls.",
        steps=flat(
            step(*[Read("shop/cart.py")] * 6, text="I read the file."),
            step(Run("ls tests"), Read("tests/test_cart.py")),
            step(Run("wc -l shop/cart.py"), Run("wc -l tests/test_cart.py")),
            agent_text("It has one class, Cart."),
        ),
    )


@scenario
def healthy_three_checks_after_edits() -> Scenario:
    line = "    return 1  # FIXME incompatible return value, line {0}\n"
    return Scenario(
        name="healthy-three-checks-after-edits",
        task="Make ruff, mypy and pytest pass for app/service.py.",
        tree={
            "app/service.py": "def load():\n" + "".join(line.format(number) for number in range(1, 9)),
            "tests/test_service.py": "def test_load():\n    assert 1\n",
        },
        programs=TOOLS,
        imitates="fan_out",
        note="The same three checks in parallel after each of 8 edits, with one error fewer each time.",
        steps=flat(
            step(Read("app/service.py")),
            *[
                [
                    step(Edit("app/service.py", line.format(number), f"    # {number}\n" if number < 8 else "    return 1\n")),
                    step(Run("ruff check app"), Run("mypy app"), Run("pytest -q")),
                ]
                for number in range(1, 9)
            ],
            agent_text("All three pass."),
        ),
    )  # fmt: skip


@scenario
def healthy_parallel_subagents() -> Scenario:
    def look(part: str) -> tuple[Run | Read, ...]:
        return (Run("ls -R ."), Run("git log --oneline -3"), Read(f"docs/{part}.md"))

    return Scenario(
        name="healthy-parallel-subagents",
        task="Let three sub-agents review the documents in docs, one each, and summarise.",
        kind="review",
        tree={f"docs/{part}.md": f"# {part}\n\nText about {part}.\n" for part in ("api", "setup", "faq")},
        setup="git init -q . && git add . && git commit -qm 'Add documents'",
        imitates="fan_out",
        note="Three parallel sub-agents begin with the same listing and log; their calls interleave.",
        scripts={
            part: flat(
                step(look(part)[0], text="I look around."),
                step(look(part)[1]),
                step(look(part)[2]),
                step(Run(f"wc -w docs/{part}.md")),
                agent_text(f"The document {part} is short and correct."),
            )
            for part in ("api", "setup", "faq")
        },
        steps=flat(
            step(*[Subagent(part, f"Review docs/{part}.md.") for part in ("api", "setup", "faq")]),
            *[agent_text("I wait for the reviews.")] * 1,
            *[agent_text("The reviews are in: all three documents are correct.")] * 5,
        ),
    )
