"""Forwards requests to another server on this host, as the proxies and ingresses of vendors do."""

import io
from collections.abc import Collection

import aiohttp
from aiohttp import web

_HOP = frozenset({"connection", "transfer-encoding", "content-length", "host", "keep-alive"})


async def forward_request(request: web.Request, url: str, stored: Collection[str] = ()) -> web.Response:
    """Forward a request, and return the server's response. Headers in `stored` (in lower case) are not forwarded.

    Raises `aiohttp.ClientError` or `OSError` if no server responds.
    """
    headers = {name: value for name, value in request.headers.items() if name.lower() not in {*_HOP, *stored}}
    wait = aiohttp.ClientTimeout(total=600)
    async with (
        aiohttp.ClientSession(timeout=wait, auto_decompress=False) as session,
        session.request(
            request.method, url, params=request.query, headers=headers, data=io.BytesIO(await request.read())
        ) as answer,
    ):
        reply_headers = {name: value for name, value in answer.headers.items() if name.lower() not in _HOP}
        return web.Response(status=answer.status, headers=reply_headers, body=await answer.read())
