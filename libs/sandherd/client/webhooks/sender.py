"""Sends one webhook: to an address that was checked, without following redirects, within limits of time and size."""

import http.client
import socket
import ssl
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from urllib.parse import SplitResult

from sandherd.client.webhooks.addresses import AddressRefusedError, port_of, resolved
from sandherd.webhook_signatures import signature

SECONDS: Final = 10.0
"""Maximum time of each step: to connect, to send, to receive the response's head."""
_AGENT: Final = "Sandherd"
_LONGEST_RETRY: Final = 3600.0


@dataclass(frozen=True)
class SendResult:
    """What came of an attempt. `status` is None if there was no response."""

    status: int | None
    reason: str
    retry_after: float | None = None

    @property
    def is_accepted(self) -> bool:
        """Whether the receiver has accepted it."""
        return self.status is not None and 200 <= self.status < 300

    @property
    def wants_no_more(self) -> bool:
        """Whether the receiver wants no more of them."""
        return self.status == http.HTTPStatus.GONE


@dataclass(frozen=True)
class Webhook:
    """What is sent: the id is that of the event, and so the same whenever it is sent again."""

    id: str
    body: bytes

    def headers(self, secrets: tuple[str, ...], now: datetime) -> dict[str, str]:
        """Its headers, with one signature for each secret: a new one and the last, while they are exchanged."""
        stamp = str(int(now.timestamp()))
        return {
            "Content-Type": "application/cloudevents+json; charset=utf-8",
            "User-Agent": _AGENT,
            "webhook-id": self.id,
            "webhook-timestamp": stamp,
            "webhook-signature": " ".join(signature(one, self.id, stamp, self.body) for one in secrets),
        }


class Sender:
    """Sends webhooks to one URL. Its methods block."""

    def __init__(self, url: SplitResult, *, private: bool, seconds: float = SECONDS) -> None:
        self._url = url
        self._private = private
        self._seconds = seconds
        self._tls = ssl.create_default_context() if url.scheme == "https" else None

    def send(self, body: bytes, headers: dict[str, str]) -> SendResult:
        """Send it once. The response's body is not read."""
        try:
            address = resolved(self._url, private=self._private)
            with self._connected(address) as connected:
                return self._exchange(connected, body, headers)
        except AddressRefusedError as error:
            return SendResult(None, str(error))
        except (OSError, http.client.HTTPException, ValueError) as error:
            return SendResult(None, f"{type(error).__name__}: {error}"[:200])

    def _connected(self, address: str) -> socket.socket:
        """A connection to this address and no other; TLS is with the host of the URL."""
        plain = socket.create_connection((address, port_of(self._url)), self._seconds)
        if self._tls is None:
            return plain
        try:
            return self._tls.wrap_socket(plain, server_hostname=self._url.hostname)
        except BaseException:  # raised again: the socket is closed
            plain.close()
            raise

    def _exchange(self, connected: socket.socket, body: bytes, headers: dict[str, str]) -> SendResult:
        host = self._url.netloc
        target = self._url.path or "/"
        connection = http.client.HTTPConnection(self._url.hostname or "", timeout=self._seconds)
        connection.sock = connected
        connection.putrequest("POST", f"{target}?{self._url.query}" if self._url.query else target, skip_host=True)
        for name, value in {"Host": host, "Connection": "close", "Content-Length": str(len(body)), **headers}.items():
            connection.putheader(name, value)
        connection.endheaders(body)
        response = connection.getresponse()
        return SendResult(
            response.status, f"status {response.status}", _seconds_of(response.headers.get("Retry-After"))
        )


def _seconds_of(text: Any) -> float | None:
    """The seconds of `Retry-After`; None for a date, or without it."""
    return min(float(text), _LONGEST_RETRY) if isinstance(text, str) and text.isascii() and text.isdigit() else None
