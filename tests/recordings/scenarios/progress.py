"""Work without progress: no edits, and contexts that are compacted repeatedly."""

from random import Random

from tests.recordings.scenario import (
    Edit,
    Harness,
    Read,
    Run,
    Scenario,
    Step,
    agent_text,
    flat,
    marked,
    scenario,
    step,
)

PARTS = {f"src/part_{n:02}.py": f'"""Part {n}."""\n\nSIZE = {n}\n\n\ndef load():\n    return SIZE\n' for n in range(60)}
BIG = {f"data/big_{n}.txt": "".join(f"row {n}-{row}: {row * 7919 % 10007}\n" for row in range(900)) for n in range(6)}
TEST = {"tests/test_parts.py": "def test_parts():\n    assert True\n"}


def wandering(count: int, seed: str) -> list[Step]:
    """Reads and searches in the same few places, in an order without repeated blocks."""
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
        steps=flat(marked(wandering(64, "claude")), agent_text("I have not changed anything yet.")),
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
            agent_text("Two are done."),
        ),
    )


@scenario
def no_progress_openhands() -> Scenario:
    return Scenario(
        name="no-progress-openhands",
        harness="openhands",
        task="Triple the SIZE of part 2.",
        kind="change",
        tree={name: PARTS[name] for name in list(PARTS)[:5]},
        setup="git init -q . && git add . && git commit -qm 'Add parts'",
        rule="no_progress",
        note="48 calls without an edit, which repeat seven places in an irregular order.",
        may=("loop", "cycle", "repeat_varied"),
        steps=flat(marked(wandering(48, "openhands")), agent_text("I have not changed anything.")),
    )


def reading(name: str, harness: Harness, kind: str | None, last: tuple[Step, ...], note: str) -> Scenario:
    """Many reads of different files."""
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
        (agent_text("Each part is on its own."),),
        "60 files read, without an edit, as asked.",
    )


@scenario
def healthy_long_reading_first() -> Scenario:
    last = flat(
        step(Edit("src/part_59.py", "def load()", "def load_part()")),
        step(Run("pytest -q")),
        agent_text("It is renamed."),
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
            agent_text("All names are good; types are missing."),
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
        steps=flat(marked(rounds), agent_text("I have to begin again.")),
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
            marked([*views * 4, full, *views * 4, full, *views * 4, full, *views * 4, full]),
            agent_text("It is too much."),
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
            agent_text("All thirty are renamed."),
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
            agent_text("Each has 900 rows."),
        ),
    )
