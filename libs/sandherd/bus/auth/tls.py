"""The files of TLS connections to the broker: certificates of authorities, and a client certificate with its key."""

import os
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from sandherd.bus.errors import TlsError

CA, CERT, KEY = "NATS_CA", "NATS_CERT", "NATS_KEY"
"""The environment variables with the paths of the files; the NATS tools use the same."""
_PAIR_REQUIRED: Final = f"{CERT} and {KEY} belong together: set both, or none"


@dataclass(frozen=True)
class TlsFiles:
    """Paths of PEM files. Without `ca` the system's authorities are trusted. Without `cert` no certificate is sent."""

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None

    @classmethod
    def of(cls, environ: Mapping[str, str] | None = None) -> Self:
        """The files that these environment variables name; by default, the variables of the process."""
        values = os.environ if environ is None else environ
        return cls(*(Path(values[name]) if values.get(name) else None for name in (CA, CERT, KEY)))

    def context(self) -> ssl.SSLContext | None:
        """The TLS context of connections; None if no file is set, so that nats-py uses its own.

        Raises `TlsError`, which names the variable and the file.
        """
        if self == TlsFiles():
            return None
        if (self.cert is None) != (self.key is None):
            raise TlsError(_PAIR_REQUIRED)
        with self._naming_ca():
            context = ssl.create_default_context(cafile=str(self.ca) if self.ca else None)
        self._load_certificate(context)
        return context

    def load(self, context: ssl.SSLContext) -> None:
        """Read the files again into a context, because they may have been renewed. Raises `TlsError`.

        Authorities are only added to the context, never removed.
        """
        if self.ca is not None:
            with self._naming_ca():
                context.load_verify_locations(self.ca)
        self._load_certificate(context)

    @contextmanager
    def _naming_ca(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:  # includes `ssl.SSLError`
            raise TlsError(f"{CA}={self.ca}: {_reason(error)}; it has to be a PEM file of certificates") from None

    def _load_certificate(self, context: ssl.SSLContext) -> None:
        if self.cert is None or self.key is None:
            return
        try:
            context.load_cert_chain(self.cert, self.key)
        except OSError as error:
            text = f"{CERT}={self.cert}, {KEY}={self.key}: {_reason(error)}"
            raise TlsError(f"{text}; they have to be a certificate and its key, without a passphrase") from None


def _reason(error: OSError) -> str:
    return error.strerror or type(error).__name__
