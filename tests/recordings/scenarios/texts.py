"""What an agent writes: messages without calls, and texts that repeat themselves."""

# ruff: noqa: E501  # texts of models and of tools are on one line

from tests.recordings.scenario import Read, Run, Scenario, Send, agent_text, fault, flat, marked, scenario, step
from tests.recordings.scenarios.repetition import SHOP

THOUGHTS = (
    "I will now begin with the implementation.", "The implementation should start with the model.",
    "So, to begin, the model comes first.", "As a next step I will implement the model.",
    "I am about to start.", "Now I will really start with it.", "The first thing to do is the model.",
    "Let me begin.", "I will begin with the class.",
)  # fmt: skip


@scenario
def monologue_acp() -> Scenario:
    return Scenario(
        name="monologue-acp",
        harness="acp",
        task="Add a discount to the cart.",
        tree=SHOP,
        rule="monologue",
        note="Nine messages in one turn that announce work, and no call.",
        steps=flat(step(Read("shop/cart.py")), marked([step(text=text) for text in THOUGHTS])),
    )


@scenario
def monologue_command() -> Scenario:
    return Scenario(
        name="monologue-command",
        harness="command",
        task="Plan and write the parser.",
        tree={"grammar.txt": "a: b\n"},
        rule="monologue",
        note="A program reports seven thoughts and messages after one read, and does not act.",
        steps=flat(
            step(Read("grammar.txt")),
            marked([step(text=text, thinking="What would be the best way to begin?") for text in THOUGHTS[:7]]),
        ),
    )


@scenario
def monologue_claude_iterations() -> Scenario:
    return Scenario(
        name="monologue-claude-iterations",
        task="Write the migration. End with MIGRATION COMPLETE.",
        tree=SHOP,
        rule="monologue",
        note="A continuous task: each of six iterations ends with a text alone; no tool is called.",
        spec={"continuous": {"max_iterations": 6, "completion_signal": "MIGRATION COMPLETE"}},
        ends="agent.shutdown",
        steps=flat(
            step(Read("shop/cart.py")),
            marked([agent_text(text) for text in THOUGHTS[:7]]),
        ),
    )


@scenario
def healthy_background_notices() -> Scenario:
    def start(number: int) -> Run:
        return Run(f"python3 simulate.py {number}", background=True)

    return Scenario(
        name="healthy-background-notices",
        task="Run the four simulations in the background and report each result when it is there.",
        kind="research",
        tree={
            "simulate.py": "import sys\nimport time\n\ntime.sleep(2 + 4 * int(sys.argv[1]))\nprint('seed', sys.argv[1], 'done')\n"
        },
        turns=5,
        followups=((Send("Thanks. Which one was the fastest?"), 200),),
        imitates="monologue",
        note="Four background tasks end one after the other; each notice begins a turn in which the model only speaks.",
        steps=flat(
            step(*[start(number) for number in range(4)], text="I start all four."),
            agent_text("All four run. I report when they end."),
            *[agent_text(f"One more has finished; {3 - number} still run.") for number in range(4)],
            agent_text("The first one was the fastest."),
        ),
    )


@scenario
def healthy_questions_to_a_user() -> Scenario:
    return Scenario(
        name="healthy-questions-to-a-user",
        harness="openhands",
        task="Help me to plan the move to the new database. Ask me what you need to know, one question at a time.",
        kind="research",
        tree={"README.md": "# Move\n"},
        imitates="monologue",
        note="Six messages without a call, each a question that a user answers: it waits between them.",
        followups=(
            (Send("About 40 GB."), 60),
            (Send("At night, from 2 to 4."), 45),
            (Send("Postgres 13, and we go to 17."), 90),
            (Send("Yes, two."), 30),
            (Send("No."), 20),
        ),
        steps=flat(
            agent_text("How large is the database?"),
            agent_text("When may it be down?"),
            agent_text("Which version is it?"),
            agent_text("Are there replicas?"),
            agent_text("Is there anything else that writes to it?"),
            agent_text("Then I propose a dump with four jobs at 2 o'clock, and both replicas built anew."),
        ),
    )


@scenario
def chanting_message() -> Scenario:
    return Scenario(
        name="chanting-message",
        task="Explain the cart.",
        kind="research",
        tree=SHOP,
        rule="chanting",
        note="A message repeats one sentence 40 times.",
        steps=flat(
            step(Read("shop/cart.py")),
            fault(agent_text("The cart has items. " + "The total is the sum of all items in the cart. " * 40)),
        ),
    )


@scenario
def chanting_thought() -> Scenario:
    return Scenario(
        name="chanting-thought",
        harness="openhands",
        task="Add a discount to the cart.",
        tree=SHOP,
        rule="chanting",
        note="The reasoning before a call repeats a block of two sentences 25 times.",
        may=("unverified_end",),
        steps=flat(
            step(Read("shop/cart.py")),
            fault(
                step(
                    Run("ls tests"),
                    thinking="Where do discounts belong? "
                    + "Wait, the price may be negative then. I have to check the price first. " * 25,
                )
            ),
            agent_text("A discount belongs in total."),
        ),
    )


@scenario
def chanting_acp() -> Scenario:
    return Scenario(
        name="chanting-acp",
        harness="acp",
        task="Describe a.txt.",
        kind="research",
        tree={"a.txt": "text\n"},
        rule="chanting",
        note="A message without spaces between its 60 equal blocks.",
        steps=flat(step(Read("a.txt")), fault(agent_text("Result:" + "the-file-has-one-line;" * 60))),
    )


@scenario
def healthy_repeated_code() -> Scenario:
    rows = "".join("    {'name': 'tea', 'price': 3, 'amount': 1},\n" for _ in range(30))
    return Scenario(
        name="healthy-repeated-code",
        task="Show me test data with 30 equal rows, as Python.",
        kind="research",
        tree=SHOP,
        imitates="chanting",
        note="A code block of a message has 30 equal rows, as asked.",
        steps=flat(
            step(Read("shop/cart.py")),
            agent_text(f"Here it is:\n\n```python\nROWS = [\n{rows}]\n```\n\nEach row is equal."),
        ),
    )


@scenario
def healthy_repeated_table() -> Scenario:
    rows = "".join(f"| 2026-11-{day:02} | passed | 0 failures | none |\n" for day in range(1, 29))
    listed = "".join("- checked, no finding in this file\n" for _ in range(16))
    return Scenario(
        name="healthy-repeated-table",
        harness="acp",
        task="Report the nightly runs of November as a table, and the checked files as a list.",
        kind="research",
        tree={"runs.txt": "all passed\n"},
        imitates="chanting",
        note="A table with 28 nearly equal rows, and a list with 16 equal items.",
        steps=flat(
            step(Run("cat runs.txt")),
            agent_text(
                f"| day | result | failures | note |\n|---|---|---|---|\n{rows}\nThe files:\n\n{listed}\nAll is well."
            ),
        ),
    )
