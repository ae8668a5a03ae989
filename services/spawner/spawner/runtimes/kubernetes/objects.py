"""The objects that boxes are, in their cluster: pods, and the Sandboxes that own them where such are made."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TypeVar

from kubernetes_asyncio.client.exceptions import ApiException

from spawner.runtimes.boxes.provider import Box, ProviderError, ProviderFault
from spawner.runtimes.boxes.retrying import persistently
from spawner.runtimes.kubernetes import manifests, states
from spawner.runtimes.kubernetes.cluster import PODS, Cluster
from spawner.runtimes.kubernetes.faults import faults, status_of
from spawner.runtimes.kubernetes.manifests import GROUP, POD, Json, named
from spawner.runtimes.kubernetes.watching import until

AnswerT = TypeVar("AnswerT")
_SOON: Final = 1
"""For how long a pod that is removed may end by itself, in seconds: whoever removes it has stopped it before."""
_GONE: Final = 20.0
"""How long a node may take to say that a pod is gone; one that does not is lost, and the pod is taken off the list."""


class Objects:
    """Boxes by their units' names. `version` is the one of Sandboxes that this cluster has; None: pods are made."""

    def __init__(self, cluster: Cluster, version: str | None = None) -> None:
        self.cluster = cluster
        self.version = version
        self.pods: str = PODS.format(cluster.namespace)
        self._sandboxes = f"/apis/{GROUP}/{version}/namespaces/{cluster.namespace}/sandboxes"

    @property
    def made(self) -> str:
        """Where what is made by us is."""
        return self._sandboxes if self.version else self.pods

    async def pod(self, name: str) -> Json | None:
        """The pod of a box."""
        return await self._get(self.pods, name)

    async def sandbox(self, name: str) -> Json | None:
        """The Sandbox of a box; None also where there are none."""
        return await self._get(self._sandboxes, name) if self.version else None

    async def box(self, name: str) -> Box | None:
        """A box as it is now."""
        sandbox = await self.sandbox(name)
        pod = await self.pod(name)
        if pod is not None:
            return states.box(pod, sandbox)
        return states.podless(sandbox) if sandbox is not None else None

    async def find(self, labels: Mapping[str, str]) -> list[Box]:
        """All boxes with these labels."""
        wanted = manifests.selector(labels)
        pods = {one["metadata"]["name"]: one for one in await self._list(self.pods, wanted)}
        owners = {one["metadata"]["name"]: one for one in await self._list(self.made, wanted)} if self.version else {}
        found = [states.box(pod, owners.get(name)) for name, pod in pods.items()]
        return found + [states.podless(one) for name, one in owners.items() if name not in pods]

    async def make(self, body: Json) -> None:
        """Make it, unless there is one of this name: whether that is ours, whoever asks has to see."""

        async def once() -> None:
            try:
                await self.cluster.make(self.made, body)
            except ApiException as error:
                # A quota that is being counted at the same moment is a conflict as well, and then nothing is there.
                if status_of(error).get("reason") != "AlreadyExists":
                    raise

        await _asked(f"making {body['metadata']['name']}", once)

    async def until(self, name: str, holds: Callable[[Json | None], bool], seconds: float) -> Json | None:
        """The pod of a box once this holds of it. Raises `ProviderError`."""
        return await until(self.cluster, self.pods, named(name), holds, seconds)

    async def note(self, name: str, notes: Mapping[str, str]) -> None:
        """Write something on a pod, and on its Sandbox, if it has one, which pod it was first written on."""
        pod = await self._change(self.pods, name, {"annotations": dict(notes)})
        if owner := self._sandboxes_of(pod):
            await self._change(owner, name, {"annotations": {POD: pod["metadata"]["uid"]}})

    async def labelled(self, name: str, labels: Mapping[str, str | None]) -> None:
        """Set or remove labels of a pod, if it is there."""
        try:
            await self._change(self.pods, name, {"labels": dict(labels)})
        except ProviderError as error:
            if error.fault is not ProviderFault.NOT_FOUND:
                raise

    async def remove(self, name: str) -> None:
        """Remove all that there is of a box. A pod whose node does not answer is at last removed without its word.

        Its Sandbox goes first, also where none are made any more: its controller would make the pod anew.
        """
        if owner := self._sandboxes_of(await self.pod(name)) or (self.made if self.version else None):
            await self._delete(owner, name)
        await self._delete(self.pods, name, _SOON)
        try:
            await self.until(name, lambda pod: pod is None, _GONE)
        except ProviderError as error:
            if error.fault is not ProviderFault.TIMED_OUT:
                raise
            await self._delete(self.pods, name, 0)

    def _sandboxes_of(self, pod: Json | None) -> str | None:
        """Where the Sandbox of a pod is; None for one that has none."""
        owners = (pod or {}).get("metadata", {}).get("ownerReferences") or []
        made = (one["apiVersion"] for one in owners if one["kind"] == "Sandbox")
        version = next((version for version in made if version.startswith(f"{GROUP}/")), None)
        return version and f"/apis/{version}/namespaces/{self.cluster.namespace}/sandboxes"

    async def _get(self, path: str, name: str) -> Json | None:
        try:
            return await _asked(f"looking for {name}", lambda: self.cluster.get(f"{path}/{named(name)}"))
        except ProviderError as error:
            if error.fault is ProviderFault.NOT_FOUND:
                return None
            raise

    async def _list(self, path: str, selector: str) -> list[Json]:
        listed = await _asked("listing boxes", lambda: self.cluster.get(path, labelSelector=selector))
        found: list[Json] = listed["items"]
        return found

    async def _change(self, path: str, name: str, metadata: Json) -> Json:
        body = {"metadata": metadata}
        return await _asked(f"marking {name}", lambda: self.cluster.change(f"{path}/{named(name)}", body))

    async def _delete(self, path: str, name: str, grace: int | None = None) -> None:
        try:
            await _asked(f"removing {name}", lambda: self.cluster.delete(f"{path}/{named(name)}", grace))
        except ProviderError as error:
            if error.fault is not ProviderFault.NOT_FOUND:
                raise


async def _asked(what: str, call: Callable[[], Awaitable[AnswerT]]) -> AnswerT:
    """Ask the cluster, and ask it again where that is of use: each of these calls is safe to repeat."""

    async def once() -> AnswerT:
        with faults(what):
            return await call()

    return await persistently(once)
