"""The address of a place in a bucket, and the credentials for it. Pure."""

import re
from dataclasses import dataclass, field
from typing import Final

from sandherd.settings import Settings

_URL: Final = re.compile(r"s3://([^/]+)(?:/(.*))?")


@dataclass(frozen=True)
class S3Place:
    """A part of a bucket. Without keys, those in AWS's variables, of the pod or of the instance are used."""

    bucket: str
    prefix: str = ""
    """The prefix of the names of all objects; empty: the whole bucket."""
    region: str = "us-east-1"
    endpoint: str | None = None
    """The URL of the store; None for AWS."""
    access_key_id: str | None = None
    secret_access_key: str | None = field(default=None, repr=False)
    request_seconds: float = 60
    """Timeout of one request, in seconds. A request that writes a part of a file sends 8 MiB."""
    retries: int = 3
    """How often a request is repeated if it got no response, or if the store is overloaded."""

    @property
    def url(self) -> str:
        """The URL of the place, without credentials, for users."""
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")


def place_of(url: str, settings: Settings) -> S3Place | None:
    """The place in S3 that a setting names; None if the setting is not a URL of S3."""
    match = _URL.fullmatch(url)
    if match is None:
        return None
    return S3Place(
        bucket=match[1],
        prefix=match[2] or "",
        region=settings.s3_region,
        endpoint=settings.s3_endpoint,
        access_key_id=settings.s3_access_key_id,
        secret_access_key=settings.s3_secret_access_key,
    )
