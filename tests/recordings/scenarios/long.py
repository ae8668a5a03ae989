"""Long healthy sessions."""

# ruff: noqa: E501  # texts of models and of tools are on one line

from tests.recordings.scenario import (
    Edit,
    Read,
    Run,
    Scenario,
    Send,
    Step,
    Tool,
    Write,
    agent_text,
    flat,
    scenario,
    step,
)
from tests.recordings.scenarios.progress import PARTS, TEST
from tests.recordings.scenarios.stand_ins import CARGO, CHECKER, NPM, PENDING

LINES = (
    "let x = parse(input)", "match token", "impl Display for Token", "return Err(e)", "use crate::ast", "loop { next() }",
    "if self.done", "let mut map", "while let Some(t)", "struct Parser<'a>",
)  # fmt: skip
KINDS = (
    "cannot find value `input` in this scope", "mismatched types", "unresolved import `crate::ast`",
    "borrow of moved value: `map`", "missing lifetime specifier", "the trait bound `Token: Display` is not satisfied",
    "expected `;`, found `}`", "unused variable: `t`", "cannot borrow `*self` as mutable", "no method named `next` found",
)  # fmt: skip


@scenario
def long_cargo_errors() -> Scenario:
    broken = "".join(f"// {line} /* BROKEN: {kind} */\n" for line, kind in zip(LINES, KINDS, strict=True))
    return Scenario(
        name="long-cargo-errors",
        task="Make the parser compile.",
        tree={"src/parser.rs": broken + "fn test_parser() {}\n", "src/main.rs": "fn main() {}\n"},
        programs={"cargo": CARGO},
        note="Ten compiler errors, each another one, fixed one after the other: a build fails ten times in between.",
        imitates="error_streak",
        steps=flat(
            step(Read("src/parser.rs"), Read("src/main.rs")),
            *[
                [
                    step(Run("cargo build"), text="What is next?"),
                    step(Edit("src/parser.rs", f"// {line} /* BROKEN: {kind} */\n", f"// {line}\n")),
                    step(Read("src/parser.rs", offset=1 + number, limit=3)),
                ]
                for number, (line, kind) in enumerate(zip(LINES, KINDS, strict=True))
            ],
            step(Run("cargo build")),
            step(Run("cargo test")),
            *[
                [step(Edit("src/main.rs", "fn main() {}", f"fn f{n}() {{}}\nfn test_f{n}() {{}}\nfn main() {{}}")), step(Run("cargo test"))]
                for n in range(10)
            ],
            agent_text("The parser compiles."),
        ),
    )  # fmt: skip


@scenario
def long_batch_renames() -> Scenario:
    names = [name.removeprefix("src/") for name in PARTS]
    return Scenario(
        name="long-batch-renames",
        harness="acp",
        task="Rename all parts from part_NN.py to section_NN.py, with git.",
        tree={**PARTS, **TEST},
        setup="git init -q . && git add . && git commit -qm 'Add parts'",
        note="60 renames with the same program in a row, and 60 edits of the renamed files.",
        imitates="loop",
        steps=flat(
            step(Run("git ls-files | wc -l")),
            [step(Run(f"git mv src/{name} src/{name.replace('part', 'section')}")) for name in names],
            [step(Edit(f"src/{name.replace('part', 'section')}", '"""Part', '"""Section')) for name in names],
            step(Run("pytest -q")),
            step(Run("git add -A && git commit -qm 'Rename parts to sections' && git status --short")),
            agent_text("60 files are renamed."),
        ),
    )


@scenario
def long_migration() -> Scenario:
    return Scenario(
        name="long-migration",
        harness="command",
        task="Add type annotations to all parts; run the tests after each five of them.",
        tree={**PARTS, **TEST},
        programs={"mypy": CHECKER},
        note="252 steps: each of 60 files is read, edited twice and read again; tests and types pass between.",
        imitates="edit_thrash",
        steps=flat(
            *[
                [
                    step(Read(name), text=f"{name} is next."),
                    step(Edit(name, "SIZE = ", "SIZE: int = ")),
                    step(Edit(name, "def load():", "def load() -> int:")),
                    step(Read(name, offset=3, limit=4)),
                ]
                + ([step(Run("pytest -q")), step(Run("mypy src"))] if n % 10 == 9 else [])
                for n, name in enumerate(PARTS)
            ],
            step(text="All parts are annotated."),
        ),
    )


@scenario
def long_test_driven() -> Scenario:
    return Scenario(
        name="long-test-driven",
        harness="command",
        task="Develop the converter test first, one unit at a time.",
        tree={"convert.py": "UNITS = {}\n"},
        note="500 steps: 100 units, each with a red test, an implementation, a green test and a look at both files.",
        imitates="error_streak",
        steps=flat(
            *[
                [
                    step(
                        Write(
                            f"tests/test_unit_{n}.py",
                            f"from convert import UNITS\n\n\ndef test_unit_{n}():\n    assert UNITS['u{n}'] == {n}\n",
                        ),
                        text=f"Unit {n}: the test first.",
                    ),
                    step(Run(f"pytest -q tests/test_unit_{n}.py")),
                    step(Edit("convert.py", "UNITS = {", f"UNITS = {{'u{n}': {n}, ")),
                    step(Run(f"pytest -q tests/test_unit_{n}.py")),
                    step(Read("convert.py", offset=1, limit=1 + n)),
                ]
                for n in range(100)
            ],
            step(text="100 units are converted."),
        ),
    )


@scenario
def long_research() -> Scenario:
    return Scenario(
        name="long-research",
        harness="acp",
        task="Write an overview of all parts: who calls load, who uses SIZE.",
        kind="research",
        tree=PARTS,
        note="184 different reads and searches, without an edit, as asked.",
        imitates="no_progress",
        steps=flat(
            *[
                [
                    step(Read(name), thinking=f"{name} may use others."),
                    step(Run(f"grep -n load {name}")),
                    step(Run(f"grep -rlw {name[4:-3]} src | head -3; wc -c {name}")),
                ]
                for name in PARTS
            ],
            step(Run("cat src/part_0*.py | grep -c SIZE"), Run("ls src | wc -l"), Run("du -s src")),
            agent_text("No part uses another one."),
        ),
    )


@scenario
def long_polling() -> Scenario:
    return Scenario(
        name="long-polling",
        harness="openhands",
        task="Deploy four services, one after the other, and wait for each of them.",
        tree={"deploy.yaml": "replicas: 3\n"},
        setup="echo 7 > ../.limit",
        programs={
            "deploy": "import os\nos.path.exists('/home/agent/.counters/pending') and os.remove('/home/agent/.counters/pending')\n"
            "print(f'deployment.apps/{sys.argv[1]} created')\n",
            "status": PENDING,
        },
        note="Four deployments with eight polls each, 55 s apart; each ends with success.",
        imitates="loop",
        steps=flat(
            step(Read("deploy.yaml")),
            *[
                [step(Run(f"deploy {name}"), text=f"Now {name}.")] + [step(Run(f"sleep 55 && status {name}"))] * 8
                for name in ("web", "api", "worker", "mail")
            ],
            agent_text("All four services are available."),
        ),
    )


@scenario
def long_feature_openhands() -> Scenario:
    names = list(PARTS)[:14]
    return Scenario(
        name="long-feature-openhands",
        harness="openhands",
        task="Add a function save to the first 14 parts, with tests.",
        tree={**{name: PARTS[name] for name in names}, **TEST},
        note="57 steps: read, edit, test and run for each of 14 parts.",
        imitates="cycle",
        steps=flat(
            step(Run("ls src")),
            *[
                [
                    step(Read(name)),
                    step(Edit(name, "def load():", "def save():\n    return 0\n\n\ndef load():"), text="I add save."),
                    step(Write(f"tests/test_{n}.py", f"def test_save_{n}():\n    assert {n} == {n}\n")),
                    step(Run("pytest -q tests")),
                ]
                for n, name in enumerate(names)
            ],
            agent_text("All 14 parts can be saved."),
        ),
    )


@scenario
def long_refactoring() -> Scenario:
    names = list(PARTS)[:24]
    return Scenario(
        name="long-refactoring",
        task="Replace SIZE by size() in the first 24 parts.",
        tree={**{name: PARTS[name] for name in names}, **TEST},
        setup="git init -q . && git add . && git commit -qm 'Add parts'",
        note="79 steps: reads, edits, tests after each six files, commits; a user asks something in the middle.",
        imitates="no_progress",
        steps=flat(
            step(Run("git status --short && ls src")),
            *[_refactored(n, name) for n, name in enumerate(names)],
            step(Run("git log --oneline")),
            agent_text("All 24 parts are changed and committed."),
        ),
    )


def _refactored(n: int, name: str) -> list[Step]:
    first = step(Read(name))
    first = first.while_sending(Send("How far are you?")) if n == 10 else first
    found = [
        first,
        step(Edit(name, f"SIZE = {n}", f"def size():\n    return {n}")),
        step(Edit(name, "return SIZE", "return size()"), text=f"{n + 1} of 24."),
    ]
    if n % 6 == 5:
        found += [step(Run("pytest -q")), step(Run(f"git add -A && git commit -qm 'Change parts to {n}'"))]
    return found


@scenario
def long_merge_conflicts() -> Scenario:
    setup = "git init -q -b main . && git add . && git commit -qm Begin && " + " && ".join(
        f"git checkout -q -b f{n} main && echo 'f{n}' >> notes.txt && git commit -qam 'Note {n}'" for n in range(8)
    )
    return Scenario(
        name="long-merge-conflicts",
        task="Merge the branches f0 to f7 into main and resolve the conflicts; keep all lines.",
        tree={"notes.txt": "begin\n", **TEST},
        setup=setup + " && git checkout -q main",
        note="Eight merges, seven of which fail with a conflict in the same file that is then resolved.",
        imitates="error_streak",
        steps=flat(
            step(Run("git branch")),
            *[
                [
                    step(Run(f"git merge f{n}")),
                    step(Read("notes.txt")),
                    step(Write("notes.txt", "begin\n" + "".join(f"f{k}\n" for k in range(n + 1)))),
                    step(Run("pytest -q")),
                    step(Run(f"git add -A && (git commit -qm 'Merge f{n}' || true) && git log --oneline | head -3")),
                ]
                for n in range(8)
            ],
            agent_text("All branches are merged."),
        ),
    )


@scenario
def long_frontend() -> Scenario:
    return Scenario(
        name="long-frontend",
        harness="acp",
        task="Build the components of the shop.",
        tree={"package.json": "{}\n", "src/index.js": "let a = 0;\n"},
        programs={"npm": NPM},
        note="40 components: written, linted, tested and built; hashes and durations in each result differ.",
        imitates="cycle",
        steps=flat(
            *[
                [
                    step(Write(f"src/c{n}.js", f"export const C{n} = () => {n};\n"), text=f"Component {n}."),
                    step(Run("npm run lint")),
                    step(Run("npm test")),
                ]
                + ([step(Run("npm run build"))] if n % 4 == 3 else [])
                for n in range(40)
            ],
            agent_text("40 components are built."),
        ),
    )


@scenario
def long_todo_lists() -> Scenario:
    names = list(PARTS)[:12]

    def todo(done: int) -> Tool:
        states = ["done" if n < done else "in_progress" if n == done else "todo" for n in range(12)]
        tasks = [{"title": name, "status": state, "notes": ""} for name, state in zip(names, states, strict=True)]
        return Tool("task_tracker", {"command": "plan", "task_list": tasks})

    return Scenario(
        name="long-todo-lists",
        harness="openhands",
        task="Add a docstring to load in twelve parts, with a list of what is left.",
        tree={**{name: PARTS[name] for name in names}, **TEST},
        note="A list is updated after each of twelve edits: the same tool again and again, with other inputs.",
        imitates="loop",
        steps=flat(
            *[
                [
                    step(todo(n)),
                    step(Read(name)),
                    step(Edit(name, "def load():\n", 'def load():\n    """Load it."""\n')),
                ]
                + ([step(Run("pytest -q"))] if n % 3 == 2 else [])
                for n, name in enumerate(names)
            ],
            step(todo(12)),
            agent_text("All twelve have a docstring."),
        ),
    )


@scenario
def long_shell_script() -> Scenario:
    script = '#!/bin/sh\nfor n in $(seq 1 40); do echo "step $n of 40: converted part_$n in $((n * 7 % 11)) s"; sleep 60; done\n'
    return Scenario(
        name="long-shell-script",
        harness="command",
        task="Convert the parts.",
        tree={"parts.txt": "1\n2\n"},
        options={"script": script},
        note="A program that reports no calls works for 40 minutes, and prints its progress.",
        imitates="stuck",
        steps=(),
    )


@scenario
def long_annotations() -> Scenario:
    return Scenario(
        name="long-annotations",
        task="Annotate load in all parts.",
        tree={**PARTS, **TEST},
        note="133 steps of Claude: each of 60 files is read and edited, with tests after each five; then a last look.",
        imitates="unverified_end",
        steps=flat(
            *[
                [step(Read(name)), step(Edit(name, "def load():", "def load() -> int:"))]
                + ([step(Run("pytest -q"))] if n % 5 == 4 else [])
                for n, name in enumerate(PARTS)
            ],
            agent_text("All parts are annotated."),
        ),
    )
