"""Copies of the objects of boxes, updated by watches, so that reading a box again needs no request to the cluster."""

from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from typing import Final

from spawner.runtimes.boxes.box_files import HERD
from spawner.runtimes.boxes.provider import Box
from spawner.runtimes.kubernetes import manifests, states
from spawner.runtimes.kubernetes.cluster import Cluster
from spawner.runtimes.kubernetes.manifests import UNIT, Json, named
from spawner.runtimes.kubernetes.merged_streams import merged
from spawner.runtimes.kubernetes.objects import BoxObjects, boxes_of
from spawner.runtimes.kubernetes.pod_watch import PodList, WatchItem, WatchState, follow

_OF_HERDS: Final = manifests.selector({}) + f",{HERD}"
_READ_ALONE: Final = 16
"""The maximum number of boxes without copies that are read one by one; if there are more, all boxes are listed."""


class ObjectCache:
    """Copies of all objects of boxes at one API path."""

    def __init__(self, cluster: Cluster, path: str) -> None:
        self._cluster = cluster
        self._path = path
        self.items: dict[str, Json] = {}
        """The copies, by the names of the objects, without fields that a box does not need, such as the spec."""
        self.current = False
        """Whether a working watch follows the objects. If not, `items` may be outdated.

        A server that stops responding is noticed after at most `cluster.STALE` seconds.
        """

    async def follow(self) -> AsyncGenerator[set[str], None]:
        """Watch until closed; yields the names of changed objects. Raises `ProviderError`."""
        try:
            async with aclosing(follow(self._cluster, self._path, labelSelector=_OF_HERDS)) as items:
                async for one in items:
                    yield self._store(one)
        finally:
            self.current = False

    def _store(self, one: WatchItem) -> set[str]:
        if isinstance(one, WatchState):
            self.current = one.works
            return set()
        if isinstance(one, PodList):
            before = self.items.keys()
            self.items = {item["metadata"]["name"]: _slim(item) for item in one.items}
            return before | self.items.keys()
        self.current = True
        name: str = one.item["metadata"]["name"]
        if one.deleted:
            self.items.pop(name, None)
        else:
            self.items[name] = _slim(one.item)
        return {name}


class BoxCache:
    """Boxes by unit name, read from copies.

    A copy is used only while watches follow all objects, and if they have reported the pod and all our own writes to
    the box. If they have not reported a pod, the cluster is queried.
    """

    def __init__(self, objects: BoxObjects) -> None:
        self._objects = objects
        self._pods = ObjectCache(objects.cluster, objects.pods)
        self._sandboxes = ObjectCache(objects.cluster, objects.made) if objects.version else None
        self._written: dict[str, int] = {}
        """Units whose copies may be older than our last write to them, with the number of that write."""
        self._writes = 0

    @property
    def current(self) -> bool:
        """Whether all objects are followed."""
        return self._pods.current and (self._sandboxes is None or self._sandboxes.current)

    async def get(self, unit: str) -> Box | None:
        """A box, or None."""
        name = named(unit)
        if self.current and self._is_copied(unit):
            return self._copy(name)
        writes = self._writes
        sandbox, pod = await self._objects.read(unit)
        self._reconcile(unit, sandbox, pod, writes)
        return states.of(sandbox, pod)

    async def find(self, labels: Mapping[str, str]) -> Sequence[Box]:
        """All boxes with these labels."""
        if not self.current:
            return await self._objects.find(labels)
        units = {_unit(item) for item in [*self._pods.items.values(), *self._owners().values()]} | self._written.keys()
        if sum(not self._is_copied(unit) for unit in units) > _READ_ALONE:
            return await self._list(labels)
        found = [await self.get(unit) for unit in sorted(units)]
        return [box for box in found if box is not None and labels.items() <= box.labels.items()]

    async def _list(self, labels: Mapping[str, str]) -> Sequence[Box]:
        writes = self._writes
        owners, pods = await self._objects.listed(labels)
        for unit in list(self._written):
            self._reconcile(unit, owners.get(named(unit)), pods.get(named(unit)), writes)
        return boxes_of(owners, pods)

    def _reconcile(self, unit: str, sandbox: Json | None, pod: Json | None, writes: int) -> None:
        """Use a unit's copies again if they equal these objects. `writes`: the number of our writes before the read."""
        if self.current and self._written.get(unit, 0) <= writes and self._agrees(named(unit), sandbox, pod):
            self._written.pop(unit, None)

    @contextmanager
    def writing(self, unit: str) -> Iterator[None]:
        """Reads of the box after this block include the writes of the block."""
        self._note(unit)
        try:
            yield
        finally:
            self._note(unit)

    def _note(self, unit: str) -> None:
        self._writes += 1
        self._written[unit] = self._writes

    async def changes(self) -> AsyncGenerator[str, None]:
        """Update the copies; yield the units of changed boxes, without changes of objects that do not affect a box."""
        known: dict[str, tuple[str, object]] = {}
        sources = [self._pods, *([self._sandboxes] if self._sandboxes else [])]
        async with aclosing(merged([source.follow() for source in sources])) as items:
            async for names in items:
                for name in sorted(names):
                    box, before = self._copy(name), known.pop(name, None)
                    if box is not None:
                        known[name] = box.name, _change_key(box)
                    if unit := _changed(before, known.get(name)):
                        yield unit

    def _owners(self) -> Mapping[str, Json]:
        return self._sandboxes.items if self._sandboxes else {}

    def _copy(self, name: str) -> Box | None:
        return states.of(self._owners().get(name), self._pods.items.get(name))

    def _is_copied(self, unit: str) -> bool:
        """Whether a box can be read from copies while they are current."""
        return unit not in self._written and self._is_complete(named(unit))

    def _is_complete(self, name: str) -> bool:
        """Whether there is a copy of the pod, and of the Sandbox that owns it, if it has one."""
        pod = self._pods.items.get(name)
        if pod is None:
            return False
        return self._objects.version is None or name in self._owners() or not states.has_sandbox(pod)

    def _agrees(self, name: str, sandbox: Json | None, pod: Json | None) -> bool:
        copies = self._owners().get(name), self._pods.items.get(name)
        return (_version(copies[0]), _version(copies[1])) == (_version(sandbox), _version(pod))


def _slim(item: Json) -> Json:
    metadata = {key: value for key, value in item["metadata"].items() if key != "managedFields"}
    return {"metadata": metadata, "status": item.get("status") or {}}


def _unit(item: Json) -> str:
    meta = item["metadata"]
    return str((meta.get("annotations") or {}).get(UNIT, meta["name"]))


def _version(item: Json | None) -> tuple[str, str] | None:
    return (item["metadata"]["uid"], item["metadata"]["resourceVersion"]) if item else None


def _change_key(box: Box) -> object:
    return box.id, box.state, box.runs, box.end, box.quarantined


def _changed(before: tuple[str, object] | None, now: tuple[str, object] | None) -> str | None:
    """The unit of a box, if the box has changed, appeared or disappeared; else None."""
    one = now or before
    return one[0] if one and before != now else None
