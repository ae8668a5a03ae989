"""Where a bucket is, and with which credentials. Pure."""

import re
from dataclasses import dataclass, field
from typing import Final

from sandherd.settings import Settings

_URL: Final = re.compile(r"s3://([^/]+)(?:/(.*))?")


@dataclass(frozen=True)
class S3Place:
    """A part of a bucket. Without keys, they are what AWS's variables, the pod's identity or the instance have."""

    bucket: str
    prefix: str = ""
    """The prefix of the names of all objects; empty: the whole bucket."""
    region: str = "us-east-1"
    endpoint: str | None = None
    """The URL of the store; None: that of AWS."""
    access_key_id: str | None = None
    secret_access_key: str | None = field(default=None, repr=False)
    request_seconds: float = 60
    """Maximum of one request. A part of a file has 8 MiB."""
    retries: int = 3
    """How often a request is repeated if it got no response, or if the store is overloaded."""

    @property
    def url(self) -> str:
        """For users, without credentials."""
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")


def place_of(url: str, settings: Settings) -> S3Place | None:
    """The place that an archive's setting names; None if it is not a place in S3."""
    found = _URL.fullmatch(url)
    if found is None:
        return None
    return S3Place(
        bucket=found[1],
        prefix=found[2] or "",
        region=settings.s3_region,
        endpoint=settings.s3_endpoint,
        access_key_id=settings.s3_access_key_id,
        secret_access_key=settings.s3_secret_access_key,
    )
