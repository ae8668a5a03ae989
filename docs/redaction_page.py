"""The page of redaction: which encodings of a secret are replaced, from the table that the search uses."""

from pages import page, table

from sandherd_worker.redaction_forms import ENCODINGS, NOT_COVERED


def redaction() -> str:
    """All encodings that are covered, the tools that write them, and what is not covered."""
    rows = dict.fromkeys((one.name, one.tools, f"{one.shortest} bytes") for one in ENCODINGS)
    return page(
        "Redaction",
        "services/worker/sandherd_worker/redaction_forms.py",
        "Sandherd replaces the values of secret variables by `[redacted]` in events, output, transcripts and spools.\n"
        "The table lists the forms in which a value is recognised, and tools that write them. Each row is tested with\n"
        "the output of such tools. It is also tested with output that arrives one character at a time, with delays:\n"
        "then up to three bytes of a value may be shown before it is recognised.\n"
        "Redaction protects against mistakes only. An agent that wants to disclose a value can write it in a form\n"
        "that is not in the table.\n",
        table(("form", "written by", "minimum length of the value"), rows),
        "Some secrets are recognised by their format, whether or not they are values of secret variables, but only\n"
        "if they are not encoded: tokens of Anthropic, OpenAI, GitHub, GitLab, AWS, Daytona, Slack and Google, JSON\n"
        "Web Tokens, NATS seeds, private keys in PEM files, and passwords in URLs.\n",
        "A number in JSON that equals a value, or contains it as digits, is replaced, too. Events about a file\n"
        "contain a diff of its redacted contents; they contain no diff if the file is too large.\n",
        "## Not replaced\n",
        "\n".join(f"- {one}" for one in NOT_COVERED) + "\n",
        "Files are not redacted: `sandherd cp` copies them unchanged, and so does Sandherd when it stores the work\n"
        "tree of an attempt.\n",
    )
