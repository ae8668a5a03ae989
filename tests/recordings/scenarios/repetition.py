"""Repeated calls: exact ones, and ones with different results."""

# ruff: noqa: E501  # texts of models and of tools are on one line

from tests.recordings.scenario import (
    Edit,
    Read,
    Run,
    Scenario,
    Send,
    Write,
    agent_text,
    flat,
    marked,
    scenario,
    step,
    times,
)
from tests.recordings.scenarios.stand_ins import GROWING_LOG, NOISY, NPM, PENDING, RANDOM

SHOP = {
    "shop/cart.py": "class Cart:\n    def __init__(self):\n        self.items = []\n\n    def total(self):\n"
    "        return sum(price for _, price in self.items)\n",
    "tests/test_cart.py": "from shop.cart import Cart\n\n\ndef test_total():\n    cart = Cart()\n"
    "    cart.items.append(('tea', 3))\n    assert cart.total() == 4\n",
}
JS = {
    "package.json": '{"name": "shop", "scripts": {"lint": "eslint .", "test": "vitest run", "build": "vite build"}}\n',
    "src/index.js": "var total = 0;\nexport function add(n) {\n  return n;\n}\n",
}


@scenario
def loop_failing_test_rerun() -> Scenario:
    return Scenario(
        name="loop-failing-test-rerun",
        task="tests/test_cart.py fails. Find out why and fix it.",
        tree=SHOP,
        rule="loop",
        note="The same test run 9 times without an edit between; durations in its output differ.",
        may=("error_streak", "no_progress"),
        steps=flat(
            step(Run("ls -R shop tests"), text="I will look at the project."),
            step(Read("shop/cart.py"), Read("tests/test_cart.py")),
            times(9, step(Run("pytest -q tests/test_cart.py"), text="Running the test.")),
            agent_text("I could not fix the test."),
        ),
    )


@scenario
def loop_read_same_file() -> Scenario:
    return Scenario(
        name="loop-read-same-file",
        task="Add a method `discount` to Cart.",
        harness="openhands",
        tree=SHOP,
        rule="loop",
        note="The same file viewed 8 times, each time with another thought.",
        may=("no_progress",),
        steps=flat(
            step(Run("ls shop")),
            marked(
                [
                    step(Read("shop/cart.py"), text=text)
                    for text in (
                        "Let me view the cart.", "I need to see the class first.", "Looking at the file again.",
                        "I should check how total works.", "Let me open cart.py.", "First, the file.",
                        "I have to read the implementation.", "Let me double-check the class.",
                    )
                ]
            ),
            agent_text("The class has to be extended."),
        ),
    )  # fmt: skip


@scenario
def loop_noise_in_results() -> Scenario:
    return Scenario(
        name="loop-noise-in-results",
        task="The nightly worker does not start. Make it start.",
        harness="acp",
        tree={"config.toml": "name = 'worker'\n"},
        programs={"run-worker": NOISY},
        rule="loop",
        note="The same failing command 10 times; its results differ in time stamps, PIDs, hashes and addresses only.",
        may=("error_streak",),
        steps=flat(
            step(Run("cat config.toml")),
            times(10, step(Run("run-worker --once"))),
            agent_text("The worker does not start."),
        ),
    )


@scenario
def loop_interleaved() -> Scenario:
    others = ("src/index.js", "package.json", "README.md")
    return Scenario(
        name="loop-interleaved",
        task="Find where the total is computed twice.",
        tree={**JS, "README.md": "# Shop\n\nA small shop.\n" * 5},
        rule="loop",
        note="The same search 9 times with an equal result, other calls between.",
        may=("no_progress", "cycle"),
        steps=flat(
            step(Run("ls")),
            marked(
                [
                    one
                    for number in range(9)
                    for one in (
                        step(Run("grep -rn total src"), text="I search for total."),
                        *[step(Read(others[number % 3], offset=1 + number, limit=2))] * (1 + number % 2),
                    )
                ]
            ),
            agent_text("It is computed once."),
        ),
    )


@scenario
def loop_lint_command() -> Scenario:
    return Scenario(
        name="loop-lint-command",
        task="Make the linter pass.",
        harness="command",
        tree=JS,
        programs={"npm": NPM},
        rule="loop",
        note="The linter run 7 times in a row with the same finding, without an edit.",
        may=("error_streak",),
        steps=flat(
            step(Read("package.json")),
            times(7, step(Run("npm run lint"), text="I run the linter.")),
            step(text="The linter reports an error."),
        ),
    )


@scenario
def healthy_poll_with_pauses() -> Scenario:
    return Scenario(
        name="healthy-poll-with-pauses",
        harness="acp",
        task="Deploy the web service with ./deploy and wait until it is available.",
        tree={"deploy.yaml": "replicas: 3\n"},
        programs={"deploy": "print('deployment.apps/web created')\n", "status": PENDING},
        imitates="loop",
        note="A status command polled 7 times, 55 s apart, until the deployment is available.",
        steps=flat(
            step(Read("deploy.yaml")),
            step(Run("deploy -f deploy.yaml"), text="I deploy it."),
            [step(Run("sleep 55 && status web"), text="Still pending; I wait.")] * 7,
            step(Run("status web --replicas")),
            agent_text("All three replicas are ready."),
        ),
    )


@scenario
def healthy_poll_growing_build() -> Scenario:
    return Scenario(
        name="healthy-poll-growing-build",
        task="Start the full build in the background and report when it has finished.",
        kind="research",
        tree={"CMakeLists.txt": "project(core)\n", "Makefile": "all:\n\t@true\n"},
        programs={"timeout": "pause(40)\n" + GROWING_LOG},
        imitates="loop",
        note="A build's log polled 30 times, 40 s apart; it grows.",
        steps=flat(
            step(Read("CMakeLists.txt")),
            step(Run("nohup make -s >build.log 2>&1 & echo started build $!")),
            [step(Run("timeout 40 tail -n 60 -f build.log || true"), text="It is still building.")] * 30,
            agent_text("The build has finished: 60 of 60 files."),
        ),
    )


@scenario
def healthy_user_asks_again() -> Scenario:
    run = step(Run("python3 report.py"), text="I run the report.")
    return Scenario(
        name="healthy-user-asks-again",
        task="Run report.py when I ask for it, and tell me what it prints.",
        kind="research",
        tree={"report.py": "print('orders today: 41')\n"},
        imitates="loop",
        note="The same command 8 times, because a user asks for it each second time: each message begins an episode.",
        steps=flat(
            run,
            run,
            *[
                [run.while_sending(Send(text)), run]
                for text in ("Again, please.", "And now?", "Once more: has it changed?")
            ],
            agent_text("It prints 41 orders each time."),
        ),
    )


@scenario
def healthy_same_test_between_edits() -> Scenario:
    cart = "class Cart:\n    def total(self):\n        return {0}\n"
    return Scenario(
        name="healthy-same-test-between-edits",
        harness="openhands",
        task="Make tests/test_cart.py pass.",
        tree={
            "shop/cart.py": cart.format(0),
            "tests/test_cart.py": "from shop.cart import Cart\n\n\ndef test_total():\n    found = Cart().total()\n    assert found == 12, f'{found} == 12'\n",
        },
        imitates="loop",
        note="The same test run 12 times with an edit before each run; the failure differs each time, then it passes.",
        steps=flat(
            step(Read("shop/cart.py")),
            *[
                [
                    step(Edit("shop/cart.py", f"return {number - 1}", f"return {number}")),
                    step(Run("pytest -q tests/test_cart.py")),
                ]
                for number in range(1, 13)
            ],
            agent_text("The test passes."),
        ),
    )


@scenario
def repeat_varied_random_results() -> Scenario:
    return Scenario(
        name="repeat-varied-random-results",
        task="Tune the model in train.py until its accuracy is above 0.9.",
        tree={"train.py": "EPOCHS = 3\n"},
        programs={"evaluate": RANDOM},
        rule="repeat_varied",
        note="The same evaluation 16 times with random results, nothing changed between.",
        may=("loop", "no_progress"),
        steps=flat(
            step(Read("train.py")),
            times(16, step(Run("evaluate --seed none"), text="Perhaps it is better this time.")),
            agent_text("The accuracy stays below 0.9."),
        ),
    )


@scenario
def repeat_varied_words() -> Scenario:
    return Scenario(
        name="repeat-varied-words",
        task="Summarise the feedback of users.",
        harness="acp",
        tree={"feedback.txt": "good\nbad\n"},
        programs={"sample": RANDOM},
        rule="repeat_varied",
        note="A sampling command 14 times in a row; each result is a new random sample and none is used.",
        may=("loop", "no_progress"),
        steps=flat(
            step(Read("feedback.txt")),
            times(14, step(Run("sample feedback --one"))),
            agent_text("The feedback is mixed."),
        ),
    )


@scenario
def healthy_growing_log() -> Scenario:
    return Scenario(
        name="healthy-growing-log",
        task="Watch the build and report what it compiles.",
        kind="research",
        harness="acp",
        programs={"show-log": GROWING_LOG},
        imitates="repeat_varied",
        note="The same log read 18 times, 12 s apart; each time it has new lines.",
        steps=flat(
            [step(Run("show-log build.log"), text=f"Part {number} of the log.", clock=12) for number in range(18)],
            agent_text("It compiles twelve modules."),
        ),
    )


@scenario
def healthy_queue_with_edits() -> Scenario:
    return Scenario(
        name="healthy-queue-with-edits",
        task="Work through the queue: `next-item` prints the next name; add it to names.txt.",
        harness="command",
        tree={"names.txt": "start\n"},
        programs={
            "next-item": "n = count('item')\nprint(['ada', 'bob', 'cleo', 'dan', 'eve', 'finn', 'gus', 'hal', 'ivy', "
            "'jo', 'kim', 'lea', 'max', 'nia', 'oto', 'pia', 'quin', 'ron', 'sue', 'tom'][(n - 1) % 20])\n",
            "make": "print('checked', len(text_of('names.txt').split()), 'names')\n",
        },
        imitates="repeat_varied",
        note="The same command 20 times, whose result is the next item; each item is written to a file between.",
        steps=flat(
            *[
                [step(Run("next-item")), step(Write("names.txt", "".join(f"name {n}\n" for n in range(number + 1))))]
                + ([step(Run("make check"))] if number % 4 == 3 else [])
                for number in range(20)
            ],
            step(text="The queue is empty."),
        ),
    )
