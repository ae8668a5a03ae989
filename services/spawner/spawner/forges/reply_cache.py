"""A cache of the last replies of forges, for conditional requests: compressed, and with a maximum size.

A pull request of GitHub has 25 kB of JSON, which is several times larger when parsed. A herd may poll hundreds of them.
"""

import json
import zlib
from collections import OrderedDict
from collections.abc import Iterator, MutableMapping
from typing import Any, Final

MAX_BYTES: Final = 8 * 1024 * 1024
"""The maximum size of all compressed replies."""
Stored = tuple[str | None, str | None, Any, str | None]
"""The headers `etag` and `last-modified`, the parsed body and the URL of the next page, as gidgethub has them."""


class ReplyCache(MutableMapping[str, Stored]):
    """Replies by URL; the one that was not used for the longest time is deleted first."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._replies: OrderedDict[str, bytes] = OrderedDict()
        self._max_bytes = max_bytes
        self._bytes = 0

    def __getitem__(self, url: str) -> Stored:
        packed = self._replies[url]
        self._replies.move_to_end(url)
        tag, time, body, following = json.loads(zlib.decompress(packed))
        return tag, time, body, following

    def __setitem__(self, url: str, reply: Stored) -> None:
        self.pop(url, None)
        packed = zlib.compress(json.dumps(reply).encode(), 1)
        self._replies[url] = packed
        self._bytes += len(packed)
        while self._bytes > self._max_bytes:
            self._bytes -= len(self._replies.popitem(last=False)[1])

    def __delitem__(self, url: str) -> None:
        self._bytes -= len(self._replies.pop(url))

    def __iter__(self) -> Iterator[str]:
        return iter(self._replies)

    def __len__(self) -> int:
        return len(self._replies)
