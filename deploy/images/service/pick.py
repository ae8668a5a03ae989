"""Takes out of `requirements.lock`, word for word, what one image needs: versions and hashes are chosen in one place.

pick.py IMAGE CONTENTS LOCK
"""

import json
import re
import sys
from pathlib import Path


def entries(text: str) -> dict[str, str]:
    """Each distribution's entries as they stand in the lock; one that is there in several versions has them all."""
    found: dict[str, str] = {}
    for entry in re.split(r"^(?=[a-z0-9])", text, flags=re.MULTILINE)[1:]:
        name = re.split(r"[=\s]", entry, maxsplit=1)[0]
        found[name] = found.get(name, "") + entry
    return found


def main(image: str, contents: str, lock: str) -> None:
    """Print the image's part of the lock."""
    locked = entries(Path(lock).read_text(encoding="utf-8"))
    names = json.loads(Path(contents).read_text(encoding="utf-8"))[image]
    sys.stdout.write("".join(locked[name] for name in names))


if __name__ == "__main__":
    main(*sys.argv[1:])
