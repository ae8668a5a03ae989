"""Work that does not advance: no edits, edits that are undone, ends without a check, contexts that are compacted."""

from random import Random

from tests.recordings.scenario import (
    Edit,
    Harness,
    Read,
    Run,
    Scenario,
    Step,
    Write,
    fault,
    flat,
    marked,
    say,
    scenario,
    step,
)
from tests.recordings.scenarios.repetition import SHOP
from tests.recordings.scenarios.stand_ins import BUNDLE, NPM

PARTS = {f"src/part_{n:02}.py": f'"""Part {n}."""\n\nSIZE = {n}\n\n\ndef load():\n    return SIZE\n' for n in range(60)}
BIG = {f"data/big_{n}.txt": "".join(f"row {n}-{row}: {row * 7919 % 10007}\n" for row in range(900)) for n in range(6)}
TEST = {"tests/test_parts.py": "def test_parts():\n    assert True\n"}


def wandering(count: int, seed: str) -> list[Step]:
    """Reads and searches of the same few places, in an order without blocks."""
    random = Random(seed)
    places: list[Read | Run] = [
        Read("src/part_01.py"), Read("src/part_02.py"), Run("grep -rn SIZE src/part_01.py"), Run("ls src | head -5"),
        Run("git status --short"), Run("cat src/part_02.py"), Read("src/part_03.py"),
    ]  # fmt: skip
    found: list[Read | Run] = []
    while len(found) < count:
        found.append(random.choice([place for place in places if place not in found[-2:]]))
    texts = ("I want to be sure.", "Let me check once again.", "Before I change it, I look.", "Hm.", "")
    return [step(one, text=random.choice(texts)) for one in found]


@scenario
def no_progress_wandering() -> Scenario:
    return Scenario(
        name="no-progress-wandering",
        task="Double the SIZE of part 1.",
        kind="change",
        tree={name: PARTS[name] for name in list(PARTS)[:5]},
        setup="git init -q . && git add . && git commit -qm 'Add parts'",
        rule="no_progress",
        note="64 calls without an edit, which repeat seven places in an irregular order.",
        may=("loop", "cycle", "repeat_varied"),
        steps=flat(marked(wandering(64, "claude")), say("I have not changed anything yet.")),
    )


@scenario
def no_progress_after_an_edit() -> Scenario:
    return Scenario(
        name="no-progress-after-an-edit",
        harness="acp",
        task="Double the SIZE of all parts.",
        kind="change",
        tree={**{name: PARTS[name] for name in list(PARTS)[:5]}, **TEST},
        setup="git init -q . && git add . && git commit -qm 'Add parts'",
        rule="no_progress",
        note="Two edits, a check, then 80 calls that repeat seven places.",
        may=("loop", "cycle", "repeat_varied"),
        steps=flat(
            step(Edit("src/part_00.py", "SIZE = 0", "SIZE = 0 * 2")),
            step(Edit("src/part_01.py", "SIZE = 1", "SIZE = 1 * 2")),
            step(Run("pytest -q")),
            marked(wandering(80, "acp")),
            say("Two are done."),
        ),
    )


def reading(name: str, harness: Harness, kind: str | None, last: tuple[Step, ...], note: str) -> Scenario:
    """Many reads, all of them new."""
    return Scenario(
        name=name,
        harness=harness,
        task="Understand how the parts depend on each other." if kind else "Rename load to load_part in part 59.",
        kind=kind,
        tree={**PARTS, **TEST},
        imitates="no_progress",
        note=note,
        steps=flat(
            step(Run("ls src")),
            [
                step(*([Read(path)] if number % 3 else [Read(path), Run(f"grep -c load {path}")]))
                for number, path in enumerate(PARTS)
            ],
            last,
        ),
    )


@scenario
def healthy_research() -> Scenario:
    return reading(
        "healthy-research",
        "acp",
        "research",
        (say("Each part is on its own."),),
        "60 files read, without an edit, as asked.",
    )


@scenario
def healthy_long_reading_first() -> Scenario:
    last = flat(
        step(Edit("src/part_59.py", "def load()", "def load_part()")), step(Run("pytest -q")), say("It is renamed.")
    )
    return reading("healthy-long-reading-first", "claude", None, last, "60 new files read before the only edit.")


@scenario
def healthy_review_with_second_reading() -> Scenario:
    names = list(PARTS)[:24]
    return Scenario(
        name="healthy-review-with-second-reading",
        harness="openhands",
        task="Review the first 24 parts twice: first for names, then for types. Change nothing.",
        kind="review",
        tree={name: PARTS[name] for name in names},
        imitates="no_progress",
        note="A review reads 24 files twice and edits none, as asked.",
        steps=flat(
            [step(Read(name), text="Names.") for name in names],
            [step(Read(name, offset=1, limit=5), text="Types.") for name in names],
            say("All names are good; types are missing."),
        ),
    )


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
            say("Neither value works."),
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
            say("The wording is better now."),
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
            say("Done."),
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
            say("Both build."),
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
            say("It is as fast as it can be."),
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
            say("Cart has a method count now."),
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
            say("All parts load lazily."),
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
            say("Both documents are written."),
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
            say("It is committed."),
        ),
    )


@scenario
def compaction_storm_claude() -> Scenario:
    rounds = [
        one
        for n in range(5)
        for one in (
            step(Read("src/part_01.py"), text="I read the part."),
            step(Read("src/part_02.py"), tokens=180_000),
            step(Run("ls src | head -5"), text="Where was I?"),
        )
    ]
    return Scenario(
        name="compaction-storm-claude",
        task="Merge the parts 1 and 2.",
        tree={name: PARTS[name] for name in list(PARTS)[:5]},
        env={"CLAUDE_CODE_AUTO_COMPACT_WINDOW": "100000"},
        options={"model": "claude-sonnet-4-5"},
        rule="compaction_storm",
        note="Five compactions without an edit; after each one the agent reads the same files again.",
        may=("loop", "cycle", "no_progress"),
        steps=flat(marked(rounds), say("I have to begin again.")),
    )


@scenario
def compaction_storm_openhands() -> Scenario:
    views = [step(Read("src/part_01.py")), step(Read("src/part_02.py")), step(Run("ls src | head -3"))]
    full = step(failure=400, message="This model's maximum context length is 8192 tokens.")
    return Scenario(
        name="compaction-storm-openhands",
        harness="openhands",
        task="Merge the parts 1 and 2.",
        tree={name: PARTS[name] for name in list(PARTS)[:5]},
        rule="compaction_storm",
        note="Four compactions without an edit; between them the same three calls again and again.",
        may=("loop", "cycle", "no_progress"),
        steps=flat(
            marked([*views * 4, full, *views * 4, full, *views * 4, full, *views * 4, full]), say("It is too much.")
        ),
    )


@scenario
def healthy_compactions_with_edits() -> Scenario:
    names = list(PARTS)[:30]
    return Scenario(
        name="healthy-compactions-with-edits",
        task="Rename load to load_part in the first 30 parts.",
        tree={**{name: PARTS[name] for name in names}, **TEST},
        env={"CLAUDE_CODE_AUTO_COMPACT_WINDOW": "100000"},
        options={"model": "claude-sonnet-4-5"},
        imitates="compaction_storm",
        note="Five compactions in a long session that edits 30 files.",
        steps=flat(
            *[
                [
                    step(Read(name)),
                    step(Edit(name, "def load()", "def load_part()"), tokens=180_000 if n % 6 == 5 else 0),
                ]
                + ([step(Run("pytest -q"))] if n % 10 == 9 else [])
                for n, name in enumerate(names)
            ],
            say("All thirty are renamed."),
        ),
    )


@scenario
def healthy_compactions_of_huge_reads() -> Scenario:
    return Scenario(
        name="healthy-compactions-of-huge-reads",
        task="Describe the six data files.",
        kind="research",
        tree=BIG,
        env={"CLAUDE_CODE_AUTO_COMPACT_WINDOW": "100000"},
        options={"model": "claude-sonnet-4-5"},
        imitates="compaction_storm",
        note="Four compactions because of large files; each file is read once.",
        steps=flat(
            *[
                [
                    step(Read(name, limit=120), tokens=180_000 if n in {1, 2, 3, 5} else 0),
                    step(Run(f"tail -n 2 {name}")),
                ]
                for n, name in enumerate(BIG)
            ],
            say("Each has 900 rows."),
        ),
    )
