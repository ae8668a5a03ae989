"""The forges that the settings have credentials for."""

from functools import partial

from sandherd.settings import Settings
from spawner.forges.factory import Forges
from spawner.forges.locations import GITHUB, WELL_KNOWN
from spawner.repositories.hosts import RepositoryHosts


def forges_of(settings: Settings) -> Forges:
    """github.com with `GITHUB_TOKEN`, and the other known forges with the stored credentials of git."""
    forges = Forges()
    hosts = RepositoryHosts.of(settings)
    for host in WELL_KNOWN:
        if host.origin in hosts.origins and (settings.git_credentials or (host == GITHUB and settings.github_token)):
            forges.add_token(host, partial(_token, hosts, host.url))
    return forges


def _token(hosts: RepositoryHosts, url: str) -> str:
    credential = hosts.remote(url).credential
    return credential.password if credential else ""
