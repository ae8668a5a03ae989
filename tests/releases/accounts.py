"""The accounts of a herd and the credentials of its services, as this version's Python makes them, in the herd's home.

    python -P accounts.py HOME

Says, as one line of JSON, each account's token by its name, and each service's credentials file.
"""

# The names of version 0.1 do not exist here.
# mypy: disable-error-code="attr-defined, import-not-found, no-redef"

import json
import sys
import time
from pathlib import Path

from sandherd.bus.identity import Registrar, write_secret

try:
    from sandherd.bus.auth.permissions import SERVICES
    from sandherd.bus.identity import HerdIdentity
except ImportError:  # as these were called in version 0.1
    from sandherd.bus.identity import Identity as HerdIdentity
    from sandherd.bus.permissions import SERVICES

home, now = Path(sys.argv[1]), int(time.time())
identity = HerdIdentity(home / "identity")
identity.create(now)
identity.tokens(None, now)
credentials = {}
for service in SERVICES:
    path = home / "creds" / f"{service}-{now}.creds"
    write_secret(path, Registrar(identity).mint_service(service))
    credentials[str(service)] = str(path)
tokens = {path.stem: path.read_text() for path in identity.broker.glob("*.jwt")}
print(json.dumps({"tokens": tokens, "credentials": credentials}))
