"""The page of redaction: which encodings of a secret are replaced, from the table that the search uses."""

from pages import page, table

from sandherd_worker.redaction_forms import ENCODINGS, NOT_COVERED


def redaction() -> str:
    """All encodings that are covered, the tools that write them, and what is not covered."""
    rows = dict.fromkeys((one.name, one.tools, f"{one.shortest} bytes") for one in ENCODINGS)
    return page(
        "Redaction",
        "services/worker/sandherd_worker/redaction_forms.py",
        "Values of secret variables are replaced by `[redacted]` in events, output, transcripts and spools, in these\n"
        "written forms. Each row is tested with tools that write it, and with its output cut into single characters\n"
        "with a pause behind each: then fewer than four bytes of a value may be shown before it is known as one.\n"
        "Redaction is against mistakes. An agent that wants to disclose a value can write it in a form of its own.\n",
        table(("form", "written by", "values from"), rows),
        "Also replaced, of every owner: tokens of Anthropic, OpenAI, GitHub, GitLab, AWS, Daytona, Slack and\n"
        "Google, JSON Web Tokens, NATS seeds, private keys in PEM, and passwords in URLs, as they are.\n",
        "Not replaced:\n",
        "\n".join(f"- {one}" for one in NOT_COVERED) + "\n",
        "A number in JSON that is a value, or has one among its digits, is replaced as well. Events about a file\n"
        "contain a diff of its redacted contents; a file that is too large for a diff has none.\n",
        "Files are copied exactly as they are: `sandherd cp` redacts nothing, and the stored work tree of a\n"
        "failed attempt is not redacted either.\n",
    )
