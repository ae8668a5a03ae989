"""Failing calls: streaks of errors, and failures that are no streak."""

# ruff: noqa: E501  # texts of models and of tools are on one line

from tests.recordings.scenario import (
    Edit,
    Read,
    Refusal,
    Run,
    Scenario,
    Write,
    agent_text,
    flat,
    marked,
    scenario,
    step,
)
from tests.recordings.scenarios.stand_ins import CURL_503

CONFIG = {"app/config.py": "".join(f"OPTION_{number} = {number}\n" for number in range(40))}


@scenario
def error_streak_text_not_found() -> Scenario:
    return Scenario(
        name="error-streak-text-not-found",
        task="Rename the options in app/config.py to lower case.",
        tree=CONFIG,
        rule="error_streak",
        note="Six edits in a row with different inputs fail because the text is not in the file.",
        steps=flat(
            step(Read("app/config.py")),
            marked([step(Edit("app/config.py", f"option-{n} = {n}", f"option_{n} = {n}")) for n in range(6)]),
            agent_text("The options could not be renamed."),
        ),
    )


@scenario
def error_streak_time_outs() -> Scenario:
    texts = ("resolving packages", "building wheels", "fetching the index", "checking the lock file", "linking")
    return Scenario(
        name="error-streak-time-outs",
        task="Install the project with ./install.sh.",
        tree={"install.sh": 'echo "$1 ..."\nwhile :; do /bin/sleep 0.2; done\n'},
        rule="error_streak",
        note="Five installations time out, each with another command and another text: one streak by its class.",
        may=("stuck",),
        steps=flat(
            step(Read("install.sh")),
            marked([step(Run(f"sh install.sh '{text}'", timeout=1500)) for text in texts]),
            agent_text("The installation does not end."),
        ),
    )


@scenario
def error_streak_of_any_kind() -> Scenario:
    commands = (
        "python3 -c 'import flask'", "node missing.js", "cat settings.ini", "cd /srv/app", "make deploy",
        "git checkout feature/x", "python3 -m app", "sh ./bin/start", "tar xf backup.tar", "kubectl get pods",
        "python3 -c 'print(1/0)'",
    )  # fmt: skip
    return Scenario(
        name="error-streak-of-any-kind",
        harness="openhands",
        task="Start the application.",
        tree={"README.md": "# App\n"},
        rule="error_streak",
        note="Eleven different commands fail one after the other, each for another reason.",
        may=("no_progress",),
        steps=flat(
            step(Read("README.md")),
            marked([step(Run(command), text="I try another way.") for command in commands]),
            agent_text("The application could not be started."),
        ),
    )


@scenario
def error_streak_interleaved() -> Scenario:
    def run(number: int) -> Run:
        return Run(f"python3 -S -c 'import yaml; print({number})'")

    return Scenario(
        name="error-streak-interleaved",
        harness="acp",
        task="Print the numbers with yaml.",
        tree={f"part{number}.txt": f"part {number}\n" for number in range(9)},
        rule="error_streak",
        note="The same error from eight different commands, with successful reads between.",
        may=("no_progress",),
        steps=flat(
            step(Run("ls")),
            marked([one for n in range(8) for one in (step(run(n)), step(Read(f"part{n}.txt")))]),
            agent_text("yaml can't be imported."),
        ),
    )


@scenario
def healthy_intended_red_tests() -> Scenario:
    names = ("add", "sub", "mul", "div", "pow", "mod", "neg", "abs", "min", "max")
    test = "import calc\n\n\ndef test_{0}():\n    assert calc.{0}_(4, 2) is not None\n"
    return Scenario(
        name="healthy-intended-red-tests",
        task="Develop calc.py test first: for each operation write a failing test, see it fail, then make it pass.",
        tree={"calc.py": "# operations\n"},
        imitates="error_streak",
        note="Ten tests are written first and seen to fail, each for its own reason, before they are made to pass.",
        steps=flat(
            step(Read("calc.py")),
            *[
                [
                    step(Write(f"tests/test_{name}.py", test.format(name))),
                    step(Run(f"pytest -q tests/test_{name}.py"), text=f"{name} has to fail first."),
                ]
                for name in names[:5]
            ],
            *[
                [
                    step(Edit("calc.py", "# operations\n", f"# operations\ndef {name}_(a, b):\n    return (a, b)\n\n\n")),
                    step(Run(f"pytest -q tests/test_{name}.py"), text=f"{name} passes now."),
                ]
                for name in names[:5]
            ],
            *[
                [
                    step(Write(f"tests/test_{name}.py", test.format(name))),
                    step(Run(f"pytest -q tests/test_{name}.py"), text=f"{name} is red, as intended."),
                    step(Edit("calc.py", "# operations\n", f"# operations\ndef {name}_(a, b):\n    return (a, b)\n\n\n")),
                    step(Run(f"pytest -q tests/test_{name}.py")),
                ]
                for name in names[5:]
            ],
            step(Run("pytest -q")),
            agent_text("Ten operations, ten tests, all green."),
        ),
    )  # fmt: skip


@scenario
def healthy_one_cause_many_edits() -> Scenario:
    return Scenario(
        name="healthy-one-cause-many-edits",
        task="Set every option in app/config.py to 0.",
        tree={**CONFIG, "tests/test_config.py": "def test_config():\n    assert True\n"},
        imitates="error_streak",
        note="Nine parallel edits of one response fail for one reason, a wrong guess of the syntax. Then all succeed.",
        steps=flat(
            step(*[Edit("app/config.py", f"OPTION_{n}: {n}\n", f"OPTION_{n}: 0\n") for n in range(1, 10)]),
            step(Read("app/config.py"), text="It is no YAML; I read it first."),
            *[
                step(*[Edit("app/config.py", f"OPTION_{n} = {n}\n", f"OPTION_{n} = 0\n") for n in range(start, start + 3)])
                for start in (1, 4, 7)
            ],
            step(Run("pytest -q")),
            agent_text("The options are 0."),
        ),
    )  # fmt: skip


@scenario
def healthy_refusals_of_a_user() -> Scenario:
    return Scenario(
        name="healthy-refusals-of-a-user",
        task="Tidy up the repository.",
        tree={"old.py": "x = 1\n", "new.py": "y = 1\n", "tests/test_new.py": "def test_new():\n    assert True\n"},
        imitates="error_streak",
        note="A user refuses four commands, with reasons; the agent does something else each time.",
        refusals=(
            Refusal("git init", "No repository here, please."),
            Refusal("tox", "We have no tox."),
            Refusal("mv new.py", "Leave that file where it is."),
            Refusal("black", "No formatter."),
        ),
        steps=flat(
            step(Run("ls")),
            step(Run("git init -q .")),
            step(Run("tox -e lint")),
            step(Read("old.py")),
            step(Run("mv new.py src.py")),
            step(Run("black .")),
            step(Read("new.py")),
            step(Edit("new.py", "y = 1\n", "Y = 1\n")),
            step(Run("pytest -q")),
            agent_text("I have renamed one constant."),
        ),
    )


@scenario
def healthy_provider_outage() -> Scenario:
    return Scenario(
        name="healthy-provider-outage",
        task="Download the release notes of version 3 and store them as notes.txt.",
        kind="docs",
        programs={"curl": CURL_503},
        env={"CLAUDE_CODE_MAX_RETRIES": "4"},
        imitates="error_streak",
        note="The release server responds with 503 seven times, and the model's provider with 529 twice: an outage.",
        steps=flat(
            step(Run("ls")),
            *[
                step(Run(f"curl -fsSL https://releases.example.com/v3/notes?try={n} -o notes.txt"), text="I try later.", clock=40)
                for n in range(7)
            ],
            step(failure=529, message="Overloaded"),
            step(failure=529, message="Overloaded"),
            step(Run("curl -fsSL https://releases.example.com/v3/notes -o notes.txt")),
            step(Write("notes.txt", "Version 3: smaller and faster.\n")),
            agent_text("The notes are stored."),
        ),
    )  # fmt: skip


@scenario
def healthy_model_outage() -> Scenario:
    return Scenario(
        name="healthy-model-outage",
        harness="openhands",
        task="Count the lines of all text files.",
        kind="research",
        tree={f"text{number}.txt": "line\n" * number for number in range(1, 7)},
        env={"LLM_NUM_RETRIES": "2"},
        imitates="error_streak",
        note="pip reports the same connection error four times, and the model's server 503 once: no fault of the agent.",
        programs={
            "pip": "print('WARNING: Retrying after connection broken by NewConnectionError: Connection refused')\n"
            "fail('ERROR: Could not find a version that satisfies the requirement ' + sys.argv[2])\n",
        },
        steps=flat(
            *[
                step(Run(f"pip install {name}"), text="I install a tool.")
                for name in ("cloc", "tokei", "pygount", "loc")
            ],
            step(Run("wc -l text1.txt text2.txt"), text="Then without."),
            step(failure=503, message="Service unavailable"),
            *[step(Run(f"wc -l text{number}.txt")) for number in range(3, 7)],
            agent_text("21 lines."),
        ),
    )
