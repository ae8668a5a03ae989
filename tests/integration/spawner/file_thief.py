"""A thief that searches every file of the broker and the spawner, and has the keys of the herd."""

import base64
import re
from pathlib import Path
from typing import Any

from nacl.exceptions import CryptoError
from nacl.public import PrivateKey
from nacl.secret import SecretBox

from sandherd.bus.identity import SpawnerKeys
from sandherd.client import Context
from sandherd.contracts.subjects import Principal
from sandherd.sealed_secrets import open_sealed, private_key
from sandherd.stack.broker import Broker
from spawner.records.vault import herd_key
from tests.live_files import contents_below

CANARY = "canary-4b1f9e27-of-a-secret-value"
_KEY_BYTES = SecretBox.NONCE_SIZE + 16 + SecretBox.KEY_SIZE
_SEALED = re.compile(rb'"sealed":"([0-9a-f]+)"')
_SEALED_COMMAND = re.compile(rb'"sealed":"([A-Za-z0-9+/]{64,}=*)"')


class Thief:
    """A holder of every file of the broker and of the spawner, and of the herd's signing keys."""

    def __init__(self, herd: Broker, home: Path) -> None:
        self._herd = herd
        self._home = home

    def finds(self, value: str = CANARY) -> list[str]:
        """The places of a value: in clear, in base64 at any alignment, in hex, or in what the stored keys open."""
        forms = {value.encode(), value.encode().hex().encode()}
        forms |= {base64.b64encode(b"x" * shift + value.encode())[4:-4] for shift in range(3)}
        files = contents_below(self._herd.home, self._home)
        found = [str(path) for path, content in files.items() if any(form in content for form in forms)]
        boxes = self._keys(files)
        plain = [content.replace(b"\\", b"") for content in files.values()]
        sealed = {text for content in plain for text in _SEALED.findall(content)}
        commands = {text for content in plain for text in _SEALED_COMMAND.findall(content)}
        found += [text.decode()[:16] for text in sealed if opens(boxes, text, value)]
        return found + [text.decode()[:16] for text in commands if value in str(open_sealed(text.decode(), self._own))]

    @property
    def _own(self) -> PrivateKey:
        """The key for which clients seal their commands."""
        return private_key(SpawnerKeys.read(self._herd.spawner_identity).worker.seed)

    def _keys(self, files: dict[Path, bytes]) -> list[SecretBox]:
        """Every key of a record that is in any file, opened with the herd's key."""
        own = SecretBox(herd_key(SpawnerKeys.read(self._herd.spawner_identity).worker.seed))
        found = []
        for path, content in files.items():
            if "KV_secret_keys" not in str(path):
                continue
            for start in range(len(content) - _KEY_BYTES + 1):
                try:
                    found.append(SecretBox(own.decrypt(content[start : start + _KEY_BYTES])))
                except CryptoError:
                    continue
        return found


def opens(boxes: list[SecretBox], sealed: bytes, value: str) -> bool:
    for box in boxes:
        try:
            if value.encode() in box.decrypt(bytes.fromhex(sealed.decode())):
                return True
        except (CryptoError, ValueError):
            continue
    return False


async def forgotten(person: Any, herd: Broker, thief: Thief) -> None:
    """Wait until everything has ended and is written, then search."""
    await person.all_gone()
    await person.eventually(lambda: not thief.finds())
    await herd.stop()
    assert thief.finds() == []


def context_of(herd: Broker) -> Context:
    """The context of a user of project p1, as a client connects."""
    return Context(
        nats_url=herd.url,
        credentials=herd.credentials(Principal.CLIENT, project="p1"),
        project="p1",
        home=herd.home,
    )
