"""Sends one webhook to a checked address, with time limits. Redirects are not followed."""

import http.client
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from urllib.parse import SplitResult

from sandherd.client.webhooks.addresses import AddressRefusedError, port_of, resolve_address
from sandherd.webhook_signatures import signature

STEP_SECONDS: Final = 10.0
"""Maximum seconds of each step: to connect, to send, or to receive a part of the response's head."""
TOTAL_SECONDS: Final = 30.0
"""Maximum seconds from the connection to the end of the response's head, however slowly the receiver sends it."""
_USER_AGENT: Final = "Sandherd"
_MAX_RETRY_AFTER_SECONDS: Final = 3600.0


@dataclass(frozen=True)
class SendResult:
    """The result of an attempt. `status` is None if there was no response; `retry_after` is in seconds."""

    status: int | None
    reason: str
    retry_after: float | None = None

    @property
    def is_accepted(self) -> bool:
        """Whether the receiver has accepted the webhook: it has responded with a status of 200 to 299."""
        return self.status is not None and 200 <= self.status < 300

    @property
    def wants_no_more(self) -> bool:
        """Whether the receiver wants no more webhooks: it has responded with 410 (gone)."""
        return self.status == http.HTTPStatus.GONE


@dataclass(frozen=True)
class WebhookMessage:
    """A webhook to send. Its id is that of the event, so it is the same in each attempt."""

    id: str
    body: bytes

    def headers(self, secrets: tuple[str, ...], now: datetime) -> dict[str, str]:
        """The headers, with one signature for each secret: there is more than one during a rotation."""
        stamp = str(int(now.timestamp()))
        return {
            "Content-Type": "application/cloudevents+json; charset=utf-8",
            "User-Agent": _USER_AGENT,
            "webhook-id": self.id,
            "webhook-timestamp": stamp,
            "webhook-signature": " ".join(signature(secret, self.id, stamp, self.body) for secret in secrets),
        }


class Sender:
    """Sends webhooks to one URL. Its methods block."""

    def __init__(
        self,
        url: SplitResult,
        *,
        private: bool,
        seconds: float = STEP_SECONDS,
        total_seconds: float = TOTAL_SECONDS,
        remedy: str = "--permit-private permits others",
    ) -> None:
        """`private` permits private addresses.

        `seconds` is the maximum of each step, `total_seconds` that of the whole exchange. `remedy` is added to the
        reason of a failure if the address of the URL is not permitted.
        """
        self._url = url
        self._private = private
        self._remedy = remedy
        self._seconds = seconds
        self._total_seconds = total_seconds
        self._tls = ssl.create_default_context() if url.scheme == "https" else None

    def send(self, body: bytes, headers: dict[str, str]) -> SendResult:
        """Send a webhook once. The body of the response is not read."""
        try:
            address = resolve_address(self._url, private=self._private)
            with (
                socket.create_connection((address, port_of(self._url)), self._seconds) as plain,
                shut_down_after(plain, self._total_seconds),
                self._with_tls(plain) as connected,
            ):
                return self._exchange(connected, body, headers)
        except AddressRefusedError as error:
            return SendResult(None, f"{error}; {self._remedy}")
        except (OSError, http.client.HTTPException, ValueError) as error:
            return SendResult(None, f"{type(error).__name__}: {error}"[:200])

    def _with_tls(self, plain: socket.socket) -> socket.socket:
        """The connection, with TLS for an https URL: the certificate must be that of the URL's host."""
        return plain if self._tls is None else self._tls.wrap_socket(plain, server_hostname=self._url.hostname)

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
            response.status, f"status {response.status}", _retry_after_seconds(response.headers.get("Retry-After"))
        )


@contextmanager
def shut_down_after(connected: socket.socket, seconds: float) -> Iterator[None]:
    """Shut the connection down and raise `TimeoutError` if the context does not end within `seconds`.

    The timeout of a socket is not enough, because it limits each read: a peer could send single bytes forever.
    """
    control, expired = connected.dup(), threading.Event()

    def expire() -> None:
        expired.set()
        with suppress(OSError):  # the peer has closed the connection
            control.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(seconds, expire)
    timer.start()
    try:
        yield
    except (OSError, http.client.HTTPException):
        if not expired.is_set():
            raise
    finally:
        timer.cancel()
        timer.join()
        control.close()
    if expired.is_set():  # `http.client` takes the end of the connection for the end of the response's head
        raise TimeoutError(f"no complete response within {seconds:g} s")


def _retry_after_seconds(text: Any) -> float | None:
    """The seconds in a `Retry-After` header, at most an hour; None if there is no header, or if it is a date."""
    return (
        min(float(text), _MAX_RETRY_AFTER_SECONDS)
        if isinstance(text, str) and text.isascii() and text.isdigit()
        else None
    )
