"""An agent that outputs every secret that it has, in each usual form, in every way out of a sandbox.

Usage: python3 leaking_agent.py. Its secrets are the variables whose names begin with `LEAK_`, and some that it has
found by itself, which are known only by their format.
"""

import base64
import json
import os
import sys
from pathlib import Path
from urllib.parse import quote

FOUND = (
    "ghp_" + "a1B2c3D4e5" * 4,
    "sk-ant-api03-" + "Zy9-Xw8_" * 5,
    "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEAAAAAB\n-----END OPENSSH PRIVATE KEY-----",
)


def forms(secret: str) -> list[str]:
    """A secret unchanged, in JSON of both kinds, in JSON within JSON, in a URL and in base 64."""
    in_json = [json.dumps(secret), json.dumps(secret, ensure_ascii=False)]
    return [
        secret,
        *in_json,
        json.dumps(in_json[0]),
        quote(secret, safe=""),
        base64.b64encode(secret.encode()).decode(),
    ]


def publish(kind: str, **data: object) -> None:
    channel = os.environ.get("SANDHERD_EVENTS_FD")
    if channel:
        os.write(int(channel), json.dumps({"type": f"agent.{kind}", "data": data}).encode() + b"\n")


def leak(number: int, text: str) -> None:
    publish("message", content=f"it is {text}", content_length=1)
    publish("tool_use", tool="leak", tool_use_id=f"call-{number}", input={"value": text, text: [text]})
    publish("tool_result", tool_use_id=f"call-{number}", result=text, result_full_length=1)
    sys.stdout.write(f"out {text}\n")
    sys.stderr.write(f"err {text}\n")
    path = Path(f"leak-{number}.txt")
    path.write_text(f"{text}\n" * 2)
    path.rename(f"moved-{number}.txt")
    with Path("large.txt").open("a") as file:
        file.write(f"{text}\n" * 2000)


def main() -> None:
    secrets = [*(value for name, value in os.environ.items() if name.startswith("LEAK_")), *FOUND]
    for number, text in enumerate(form for secret in secrets for form in forms(secret)):
        leak(number, text)
    for secret in secrets:
        if "/" not in secret and "\n" not in secret:
            Path(f"name-{secret}").write_text("x")


if __name__ == "__main__":
    main()
