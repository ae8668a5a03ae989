"""A cache of the last replies of forges, for conditional requests. It is compressed, and its size is limited.

The JSON of a GitHub pull request has 25 kB, and several times as much when parsed. A herd may poll hundreds of pull
requests.
"""

import json
import zlib
from collections import OrderedDict
from collections.abc import Iterator, MutableMapping
from typing import Any, Final

MAX_BYTES: Final = 8 * 1024 * 1024
"""The maximum size of all compressed replies."""
CachedReply = tuple[str | None, str | None, Any, str | None]
"""The headers `etag` and `last-modified`, the parsed body and the URL of the next page, as gidgethub has them."""


class ReplyCache(MutableMapping[str, CachedReply]):
    """Replies by URL. The one that was not used for the longest time is deleted first."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._replies: OrderedDict[str, bytes] = OrderedDict()
        self._max_bytes = max_bytes
        self._bytes = 0

    def __getitem__(self, url: str) -> CachedReply:
        compressed = self._replies[url]
        self._replies.move_to_end(url)
        tag, time, body, next_page = json.loads(zlib.decompress(compressed))
        return tag, time, body, next_page

    def __setitem__(self, url: str, reply: CachedReply) -> None:
        self.pop(url, None)
        compressed = zlib.compress(json.dumps(reply).encode(), 1)
        self._replies[url] = compressed
        self._bytes += len(compressed)
        while self._bytes > self._max_bytes:
            self._bytes -= len(self._replies.popitem(last=False)[1])

    def __delitem__(self, url: str) -> None:
        self._bytes -= len(self._replies.pop(url))

    def __iter__(self) -> Iterator[str]:
        return iter(self._replies)

    def __len__(self) -> int:
        return len(self._replies)
