"""Edits that are undone or repeated, and ends without a check."""

# texts of models and of tools are on one line

from tests.recordings.scenario import (
    Edit,
    Read,
    Run,
    Scenario,
    Step,
    Write,
    agent_text,
    fault,
    flat,
    marked,
    scenario,
    step,
)
from tests.recordings.scenarios.progress import PARTS, TEST
from tests.recordings.scenarios.repetition import SHOP
from tests.recordings.scenarios.stand_ins import BUNDLE, NPM


@scenario
def edit_thrash_there_and_back() -> Scenario:
    def edit(old: int, new: int) -> Step:
        return step(Edit("settings.py", f"TIMEOUT = {old}", f"TIMEOUT = {new}"))

    return Scenario(
        name="edit-thrash-there-and-back",
        task="tests/test_settings.py is flaky. Choose the right time-out.",
        tree={
            "settings.py": "TIMEOUT = 30\n",
            "tests/test_settings.py": "import settings\n\n\ndef test_time_out():\n    assert settings.TIMEOUT == 45\n",
        },
        rule="edit_thrash",
        note="A value changes from 30 to 60 and back four times, with a failing test after each change.",
        may=("cycle", "error_streak", "loop"),
        steps=flat(
            step(Read("settings.py")),
            marked(
                [
                    one
                    for n in range(8)
                    for one in (edit(*((30, 60) if n % 2 == 0 else (60, 30))), step(Run("pytest -q")))
                ]
            ),
            agent_text("Neither value works."),
        ),
    )


@scenario
def edit_thrash_without_check() -> Scenario:
    return Scenario(
        name="edit-thrash-without-check",
        harness="openhands",
        task="Improve the wording of the constants in src/part_07.py.",
        tree={"src/part_07.py": "NAME = 'v0'\n"},
        rule="edit_thrash",
        note="Ten edits of one file in a row, no check between.",
        may=("unverified_end",),
        steps=flat(
            step(Read("src/part_07.py")),
            marked([step(Edit("src/part_07.py", f"'v{n}'", f"'v{n + 1}'"), text="Better still:") for n in range(10)]),
            agent_text("The wording is better now."),
        ),
    )


@scenario
def edit_thrash_rewrites() -> Scenario:
    contents = ("def area(w, h):\n    return w * h\n", "def area(w, h):\n    return w + h\n")
    return Scenario(
        name="edit-thrash-rewrites",
        harness="acp",
        task="Fix area in geometry.py.",
        tree={"geometry.py": contents[0], "tests/test_area.py": "def test_area():\n    assert True\n"},
        rule="edit_thrash",
        note="A file is rewritten with two contents in turns, six times, and tested at the end only.",
        steps=flat(
            step(Read("geometry.py")),
            marked([step(Write("geometry.py", contents[(n + 1) % 2])) for n in range(6)]),
            step(Run("pytest -q")),
            agent_text("Done."),
        ),
    )


@scenario
def healthy_generated_bundle() -> Scenario:
    return Scenario(
        name="healthy-generated-bundle",
        task="Check that the debug and the release bundle both build after each of the three changes of index.js.",
        tree={"package.json": "{}\n", "src/index.js": "let a = 0;\n"},
        programs={"bundle": BUNDLE, "npm": NPM},
        imitates="edit_thrash",
        note="A generated file in dist changes between two contents six times, as builds write it.",
        steps=flat(
            step(Read("src/index.js")),
            *[
                [
                    step(Edit("src/index.js", f"let a = {n};", f"let a = {n + 1};")),
                    step(Run("bundle --debug")),
                    step(Run("bundle --release")),
                    step(Run("npm test")),
                ]
                for n in range(3)
            ],
            agent_text("Both build."),
        ),
    )


@scenario
def healthy_one_revert() -> Scenario:
    area = "def area(w, h):\n    return {0}\n"
    test = "from geometry import area\n\n\ndef test_area():\n    assert area(2, 3) == 6\n"
    return Scenario(
        name="healthy-one-revert",
        task="Speed up area in geometry.py; tests must pass.",
        tree={"geometry.py": area.format("w * h"), "tests/test_area.py": test},
        imitates="edit_thrash",
        note="An edit breaks a test, is undone once, and another one works.",
        steps=flat(
            step(Read("geometry.py")),
            step(Run("pytest -q")),
            step(Edit("geometry.py", "w * h", "w + h")),
            step(Run("pytest -q"), text="Does it still work?"),
            step(Edit("geometry.py", "w + h", "w * h"), text="It does not; I undo it."),
            step(Run("pytest -q")),
            step(Edit("geometry.py", "w * h", "h * w")),
            step(Run("pytest -q")),
            agent_text("It is as fast as it can be."),
        ),
    )


@scenario
def unverified_end_no_check() -> Scenario:
    return Scenario(
        name="unverified-end-no-check",
        task="Add a method count to Cart.",
        tree=SHOP,
        rule="unverified_end",
        note="Two edits, and an end without any check.",
        steps=flat(
            step(Read("shop/cart.py")),
            step(Edit("shop/cart.py", "        self.items = []\n", "        self.items = []\n        self.n = 0\n")),
            fault(
                step(
                    Edit(
                        "shop/cart.py", "    def total", "    def count(self):\n        return self.n\n\n    def total"
                    )
                )
            ),
            step(Run("git diff --stat 2>/dev/null; wc -l shop/cart.py")),
            agent_text("Cart has a method count now."),
        ),
    )


@scenario
def unverified_end_edit_after_check() -> Scenario:
    return Scenario(
        name="unverified-end-edit-after-check",
        harness="acp",
        task="Make the parts load lazily.",
        tree={**{name: PARTS[name] for name in list(PARTS)[:4]}, **TEST},
        rule="unverified_end",
        note="Three edits with a passing check, then one more edit and the end.",
        steps=flat(
            *[
                [step(Read(name)), step(Edit(name, "def load()", "def load_lazily()")), step(Run("pytest -q"))]
                for name in list(PARTS)[:3]
            ],
            fault(step(Edit("src/part_03.py", "def load()", "def load_lazily()"))),
            step(Read("src/part_03.py")),
            agent_text("All parts load lazily."),
        ),
    )


@scenario
def healthy_docs_only() -> Scenario:
    return Scenario(
        name="healthy-docs-only",
        task="Document the cart in README.md and docs/cart.md.",
        kind="docs",
        tree={**SHOP, "README.md": "# Shop\n", "docs/cart.md": "# Cart\n"},
        imitates="unverified_end",
        note="Only documents are changed; there is nothing to check.",
        steps=flat(
            step(Read("shop/cart.py"), Read("README.md"), Read("docs/cart.md")),
            step(Edit("README.md", "# Shop\n", "# Shop\n\nSee [the cart](docs/cart.md).\n")),
            step(Edit("docs/cart.md", "# Cart\n", "# Cart\n\nA cart has items, and a total.\n")),
            step(Run("cat README.md docs/cart.md")),
            agent_text("Both documents are written."),
        ),
    )


@scenario
def healthy_check_before_commit() -> Scenario:
    return Scenario(
        name="healthy-check-before-commit",
        harness="openhands",
        task="Replace var by let in src/index.js and commit it.",
        tree={"package.json": "{}\n", "src/index.js": "var a = 0;\n"},
        programs={"npm": NPM},
        setup="git init -q . && git add . && git commit -qm 'Begin'",
        imitates="unverified_end",
        note="The checks pass after the last edit; then follow a commit and two reads.",
        steps=flat(
            step(Read("src/index.js")),
            step(Run("npm run lint")),
            step(Edit("src/index.js", "var a", "let a")),
            step(Run("npm run lint && npm test")),
            step(Run("git add -A && git commit -qm 'Use let'")),
            step(Run("git log --oneline")),
            step(Run("git status --short")),
            agent_text("It is committed."),
        ),
    )
