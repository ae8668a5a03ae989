"""Checks of the head of every request: a host of the gateway, and a length on which all proxies agree. Pure."""

import re
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import Response

from gateway.problems import problem_of, problem_response
from sandherd.contracts.errors import Code

LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})
_HOST: Final = re.compile(r"(\[[0-9a-f:]+\]|[a-z0-9.-]+)(:[0-9]{1,5})?")


def refusal_of(headers: Headers, hosts: frozenset[str]) -> Response | None:
    """The refusal of a request for another host, or with an ambiguous length; None if the request is accepted.

    If the length is ambiguous, a proxy may see the end of the request elsewhere than the gateway.
    """
    if not is_known_host(headers.get("host", ""), hosts):
        text = "this host is not one of the gateway's names"
        remedy = "add it to SANDHERD_GATEWAY_HOSTS if it is"
        return problem_response(problem_of(Code.REFUSED, text, field="Host", remedy=remedy), 421)
    if "transfer-encoding" in headers and "content-length" in headers:
        text = "the request has two lengths"  # RFC 9112, 6.1: the connection is closed, whichever of them is right
        problem = problem_of(Code.REFUSED, text, field="Transfer-Encoding", remedy="send one of the two headers")
        return problem_response(problem, 400, {"Connection": "close"})
    return None


def is_known_host(header: str, hosts: frozenset[str]) -> bool:
    """Whether a header `Host` names the gateway. The port is not compared, because a proxy may have another one."""
    match = _HOST.fullmatch(header.lower())
    return match is not None and match[1] in hosts


def hosts_of(url: str | None) -> frozenset[str]:
    """The host in the URL of the gateway; empty without a URL."""
    return frozenset({host} if url and (host := urlsplit(url).hostname) else ())
