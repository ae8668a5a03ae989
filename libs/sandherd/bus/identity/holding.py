"""Credentials as files: minted where there is none, and anew where one lacks rights of this version."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from sandherd.bus.identity.credentials import bearer, write_secret
from sandherd.bus.identity.keys import read_claims
from sandherd.bus.identity.material import Identity
from sandherd.bus.identity.minting import Registrar
from sandherd.bus.permissions import OF_ONE_PROJECT, PEOPLE, SERVICES, Permissions, for_person, for_service
from sandherd.bus.setting_up import PROVISIONER, for_provisioner
from sandherd.contracts.subjects import Principal


class Holding:
    """The credentials of services and people of one identity, each in the file that `place` gives for its name."""

    def __init__(self, identity: Identity, place: Callable[[str], Path]) -> None:
        self._registrar = Registrar(identity)
        self._place = place

    def keep(self, principal: Principal, project: str) -> Path:
        """The file of a service or a person; `project` is a client's. Raises `UnsafeNameError`."""
        name = f"{principal}-{project}" if principal in OF_ONE_PROJECT else principal.value
        if principal in PEOPLE:
            return self._kept(name, partial(self._registrar.mint_person, principal, name[:63], project=project))
        return self._kept(name, partial(self._registrar.mint_service, principal))

    def keep_provisioner(self) -> Path:
        """The file of what makes streams, consumers and buckets in a deployment. It does not run out."""
        return self._kept(PROVISIONER, partial(self._registrar.mint_provisioner, None, for_provisioner()))

    def _kept(self, name: str, mint: Callable[[], str]) -> Path:
        path = self._place(name)
        if not path.exists() or not _up_to_date(path):
            write_secret(path, mint())
        return path


def _up_to_date(path: Path) -> bool:
    """Whether a credential says what this version's tables give its principal; a service's is good for ever, too."""
    text = path.read_text()
    who = bearer(text)
    if who.principal in SERVICES and who.expires_at is not None:
        return False
    body = text.partition("-----BEGIN NATS USER JWT-----")[2].partition("------END")[0]
    held = read_claims(body)["nats"]
    return all(held.get(name) == value for name, value in _wanted(text).claims().items())


def _wanted(text: str) -> Permissions:
    who = bearer(text)
    if who.name == PROVISIONER:
        return for_provisioner()
    if who.principal in PEOPLE:
        return for_person(who.principal, who.project, who.public_key)
    return for_service(who.principal)
