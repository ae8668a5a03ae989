"""The error for a failed connection to a broker, with a remedy."""

import shlex
from datetime import UTC, datetime

from sandherd.bus.errors import BusError, TlsError
from sandherd.client.context import Context, holder
from sandherd.client.errors import HerdError, NotReachedError
from sandherd.contracts.errors import Code
from sandherd.settings.loader import SettingSource


def _credential_remedy(context: Context) -> str:
    """A remedy for a refused credential. It may be revoked or of another herd: the broker's error is the same."""
    if context.credentials is None:
        return "name a .creds file with SANDHERD_CREDENTIALS"
    bearer = holder(context.credentials)
    return (
        "if it was revoked (event `credential.revoked`) create another one, where the herd's keys are: "
        f"`sandherd credentials create --role {bearer.principal} --replace --file {context.credentials}`; "
        "else check with `sandherd doctor`"
    )


def connection_error(context: Context, error: BusError) -> HerdError:
    """The error for a failed connection attempt."""
    until = holder(context.credentials).expires_at if context.credentials else None
    if until is not None and until <= datetime.now(UTC):
        return NotReachedError.of(
            Code.REFUSED,
            f"the credential {context.credentials} expired at {until:%Y-%m-%d %H:%M} UTC",
            remedy="get a new .creds file from the operator of the herd",
        )
    if isinstance(error, TlsError):
        context_file = f"the file `ca` of the context {context.name}, and " if context.ca else ""
        return NotReachedError.of(
            Code.UNAVAILABLE, str(error), remedy=f"check {context_file}NATS_CA, NATS_CERT and NATS_KEY"
        )
    credential_text = f" with {context.credentials}" if context.credentials else " without a credential"
    if "authorization" in str(error).lower():
        return NotReachedError.of(
            Code.REFUSED,
            f"the broker at {context.nats_url} refused the connection{credential_text}",
            remedy=_credential_remedy(context),
        )
    if context.sources.get("nats_url") == SettingSource.PARAMETER:
        remedy = "check the address given with --nats-url, or omit it"
        return NotReachedError.of(Code.UNAVAILABLE, f"no broker at {context.nats_url}", remedy=remedy)
    if context.name is None and _home_without_stack(context):
        return NotReachedError.of(
            Code.UNAVAILABLE,
            f"no stack was started in {context.home}, and there is no broker at {context.nats_url}",
            remedy=f"name another folder with --home, or start a stack with `sandherd --home "
            f"{shlex.quote(str(context.home))} up`",
        )
    return NotReachedError.of(
        Code.UNAVAILABLE,
        f"no broker at {context.nats_url}",
        remedy=f"check its address with `sandherd context show`, or use another context than {context.name}"
        if context.name
        else "start a stack with `sandherd up`, or set NATS_URL",
    )


def _home_without_stack(context: Context) -> bool:
    """Whether the home was named on the command line and has no stack, so that the broker's address is the default."""
    is_named = context.sources.get("home") == SettingSource.PARAMETER
    return is_named and context.sources.get("nats_url") == SettingSource.DEFAULT
