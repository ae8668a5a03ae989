"""The accounts of a herd and the credentials of its services, as this version's Python makes them, in the herd's home.

    python -P accounts.py HOME

Says, as one line of JSON, each account's token by its name, and each service's credentials file.
"""

import json
import sys
import time
from pathlib import Path

from sandherd.bus.identity import Identity, Registrar, write_secret
from sandherd.bus.permissions import SERVICES

home, now = Path(sys.argv[1]), int(time.time())
identity = Identity(home / "identity")
identity.create(now)
identity.tokens(None, now)
credentials = {}
for service in SERVICES:
    path = home / "creds" / f"{service}-{now}.creds"
    write_secret(path, Registrar(identity).mint_service(service))
    credentials[str(service)] = str(path)
tokens = {path.stem: path.read_text() for path in identity.broker.glob("*.jwt")}
print(json.dumps({"tokens": tokens, "credentials": credentials}))
