"""The data of a cluster: objects with versions, the history of their changes, and their owners."""

import asyncio
import copy
import itertools
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

Json = dict[str, Any]
KINDS = {"pods": "Pod", "networkpolicies": "NetworkPolicy", "deployments": "Deployment", "sandboxes": "Sandbox"}


class ApiError(Exception):
    """An error response, with the API server's text."""

    def __init__(self, code: int, reason: str, message: str, **details: Any) -> None:
        super().__init__(message)
        self.code = code
        self.status: Json = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": message,
            "reason": reason,
            "details": details,
            "code": code,
        }


def not_found(resource: str, name: str) -> ApiError:
    return ApiError(404, "NotFound", f'{resource} "{name}" not found', name=name, kind=resource)


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass
class Event:
    version: int
    type: str
    resource: str
    object: Json


@dataclass
class Selector:
    """Label and field selectors, as far as the adapter uses them."""

    labels: str = ""
    fields: str = ""

    def takes(self, item: Json) -> bool:
        meta = item["metadata"]
        labels = meta.get("labels") or {}
        for term in filter(None, self.labels.split(",")):
            key, equal, value = term.partition("=")
            if (labels.get(key) != value.lstrip("=")) if equal else (key not in labels):
                return False
        for term in filter(None, self.fields.split(",")):
            key, _, value = term.partition("=")
            found = {"metadata.name": meta["name"], "metadata.namespace": meta["namespace"]}
            if key not in found:
                raise ApiError(400, "BadRequest", f"field label not supported: {key}")
            if found[key] != value.lstrip("="):
                return False
        return True


@dataclass
class Store:
    """All objects of all kinds, and a history to watch, which can be deleted."""

    objects: dict[tuple[str, str, str], Json] = field(default_factory=dict)
    history: list[Event] = field(default_factory=list)
    oldest: int = 0
    """The history up to this version is no longer known."""
    _versions: Any = field(default_factory=lambda: itertools.count(1000))
    version: int = 1000
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    listeners: list[Callable[[Event], None]] = field(default_factory=list)

    def get(self, resource: str, namespace: str, name: str) -> Json:
        try:
            return self.objects[resource, namespace, name]
        except KeyError:
            raise not_found(resource, name) from None

    def listed(self, resource: str, namespace: str | None, selector: Selector) -> list[Json]:
        return [
            item
            for (kind, space, _), item in sorted(self.objects.items())
            if kind == resource and namespace in {None, space} and selector.takes(item)
        ]

    def create(self, resource: str, namespace: str, body: Json) -> Json:
        item = copy.deepcopy(body)
        name = item["metadata"]["name"]
        held = self.objects.get((resource, namespace, name))
        if held is not None:
            being = "object is being deleted: " if held["metadata"].get("deletionTimestamp") else ""
            raise ApiError(409, "AlreadyExists", f'{being}{resource} "{name}" already exists', name=name, kind=resource)
        item["metadata"] |= {"namespace": namespace, "uid": str(uuid4()), "creationTimestamp": now(), "generation": 1}
        return self._put("ADDED", resource, item)

    def update(self, resource: str, item: Json, version: str | None = None) -> Json:
        meta = item["metadata"]
        held = self.get(resource, meta["namespace"], meta["name"])
        if version is not None and version != held["metadata"]["resourceVersion"]:
            conflict_text = (
                f'Operation cannot be fulfilled on {resource} "{meta["name"]}": the object has been modified; '
                "please apply your changes to the latest version and try again"
            )
            raise ApiError(409, "Conflict", conflict_text, name=meta["name"], kind=resource)
        if meta.get("deletionGracePeriodSeconds") == 0 and not meta.get("finalizers"):
            held["metadata"].pop("finalizers", None)
            return self.remove(resource, meta["namespace"], meta["name"])
        return self._put("MODIFIED", resource, copy.deepcopy(item))

    def patch(self, resource: str, namespace: str, name: str, patch: Json) -> Json:
        held = copy.deepcopy(self.get(resource, namespace, name))
        version = (patch.get("metadata") or {}).pop("resourceVersion", None)
        return self.update(resource, merged(held, patch), version)

    def remove(self, resource: str, namespace: str, name: str) -> Json:
        """Remove an object and then what it owns, as the garbage collector does; later, if finalizers hold it."""
        item = copy.deepcopy(self.get(resource, namespace, name))
        if item["metadata"].get("finalizers"):
            item["metadata"].setdefault("deletionTimestamp", now())
            item["metadata"]["deletionGracePeriodSeconds"] = 0
            return self._put("MODIFIED", resource, item)
        del self.objects[resource, namespace, name]
        self._notify("DELETED", resource, item)
        return item

    def orphans(self, uid: str) -> list[tuple[str, str, str]]:
        """The objects that are owned by this object, and by no other that still exists."""
        return [
            key
            for key, item in self.objects.items()
            if uid in {one["uid"] for one in item["metadata"].get("ownerReferences") or []}
        ]

    def forget(self) -> None:
        """Lose the history, as after a compaction of etcd."""
        self.oldest = self.version
        self.history.clear()
        self.wake()

    def wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def watch(self, resource: str, namespace: str | None, selector: Selector, since: int) -> AsyncIterator[Event]:
        """The changes since a version, and later ones. Raises `ApiError` 410 if that version is no longer known."""
        at = since
        seen: set[str] = (
            {item["metadata"]["uid"] for item in self.listed(resource, namespace, selector)} if since else set()
        )
        while True:
            if at < self.oldest:
                raise ApiError(410, "Expired", f"too old resource version: {at} ({self.oldest})")
            waits = self._changed
            for event in [one for one in self.history if one.version > at]:
                at = event.version
                meta = event.object["metadata"]
                if event.resource == resource and namespace in {None, meta["namespace"]}:
                    if selector.takes(event.object):
                        seen.add(meta["uid"])
                        yield event
                    elif meta["uid"] in seen:
                        seen.discard(meta["uid"])
                        yield Event(event.version, "DELETED", resource, event.object)
            await waits.wait()

    def _put(self, type: str, resource: str, item: Json) -> Json:
        meta = item["metadata"]
        self.objects[resource, meta["namespace"], meta["name"]] = item
        self._notify(type, resource, item)
        return copy.deepcopy(item)

    def _notify(self, type: str, resource: str, item: Json) -> None:
        self.version = next(self._versions)
        item["metadata"]["resourceVersion"] = str(self.version)
        event = Event(self.version, type, resource, copy.deepcopy(item))
        self.history.append(event)
        self.wake()
        for listener in self.listeners:
            listener(event)


def merged(old: Any, patch: Any) -> Any:
    """Apply a JSON merge patch (RFC 7386)."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    found = dict(old) if isinstance(old, dict) else {}
    for key, value in patch.items():
        if value is None:
            found.pop(key, None)
        else:
            found[key] = merged(found.get(key), value)
    return found
