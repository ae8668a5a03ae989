"""The objects of a Git LFS server: the batch API, and transfers that use keys."""

import hashlib
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final

from aiohttp import web

_JSON: Final = "application/vnd.git-lfs+json"
_BATCH: Final = "/info/lfs/objects/batch"
_STORED: Final = "/lfs-storage/"
_VERIFY: Final = "/lfs-verify"
_KEY: Final = "X-Storage-Key"


@dataclass
class LfsStore:
    """Objects by their SHA-256. A transfer needs a key that only the batch API gives, and no credential."""

    objects: dict[str, bytes] = field(default_factory=dict)
    storage: str | None = None
    """The origin at which it states that objects are; by default its own."""
    moved: str | None = None
    """The URL to which each GET of an object is redirected."""
    verified: list[str] = field(default_factory=list)
    key: str = "key-of-the-storage-5c1d"

    def add(self, content: bytes) -> str:
        """Store an object; returns the text of its pointer."""
        self.objects[hashlib.sha256(content).hexdigest()] = content
        return pointer(content)

    def serves(self, path: str) -> bool:
        """Whether a request is about objects."""
        return path.endswith((_BATCH, _VERIFY)) or path.startswith(_STORED)

    def admits(self, request: web.Request) -> bool:
        """Whether the request has the key that transfers need, and no credential."""
        with_key = request.headers.get(_KEY) == self.key and "Authorization" not in request.headers
        return request.path.startswith(_STORED) and with_key

    async def answer(self, request: web.Request, url: str) -> web.Response:
        """Respond to one request."""
        if request.path.endswith(_BATCH):
            if _JSON not in (request.headers.get("Accept"), request.content_type):
                return web.Response(status=HTTPStatus.NOT_ACCEPTABLE)
            return web.json_response(self._batch(await request.json(), url), content_type=_JSON)
        if request.path == _VERIFY:
            body = await request.json()
            self.verified.append(body["oid"])
            return web.Response(status=200 if len(self.objects[body["oid"]]) == body["size"] else 404)
        oid = request.path.removeprefix(_STORED)
        if request.method == "GET":
            return self._stored(oid)
        content = await request.read()
        if hashlib.sha256(content).hexdigest() != oid:
            return web.Response(status=HTTPStatus.BAD_REQUEST)
        self.objects[oid] = content
        return web.Response()

    def _stored(self, oid: str) -> web.Response:
        if self.moved is not None:
            return web.Response(status=HTTPStatus.FOUND, headers={"Location": self.moved})
        found = self.objects.get(oid)
        return web.Response(status=404) if found is None else web.Response(body=found)

    def _batch(self, body: Any, url: str) -> Any:
        found = [self._object(body["operation"], one["oid"], one["size"], url) for one in body["objects"]]
        return {"transfer": "basic", "objects": found, "hash_algo": "sha256"}

    def _object(self, operation: str, oid: str, size: int, url: str) -> Any:
        href = f"{self.storage or url}{_STORED}{oid}"
        action = {"href": href, "header": {_KEY: self.key}, "expires_in": 60}
        if operation == "upload":
            verify = {"href": f"{url}{_VERIFY}"}
            return {"oid": oid, "size": size} | (
                {} if oid in self.objects else {"actions": {"upload": action, "verify": verify}}
            )
        if oid not in self.objects:
            return {"oid": oid, "size": size, "error": {"code": 404, "message": "Object does not exist"}}
        return {"oid": oid, "size": size, "authenticated": True, "actions": {"download": action}}


def pointer(content: bytes) -> str:
    """The text of the pointer of an object."""
    oid = hashlib.sha256(content).hexdigest()
    return f"version https://git-lfs.github.com/spec/v1\noid sha256:{oid}\nsize {len(content)}\n"
