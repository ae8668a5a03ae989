r"""Checks, in the bytes of a JSON document and not in each value, whether it certainly has nothing to redact.

JSON escapes only `"`, `\` and control characters, and it leaves letters and digits as they are. So a document has what
`redaction_traces` and `redaction_shapes` search for if one of its texts has it: the document's trace contains the trace
of each of its texts, and each token is in the document as it is in the text. There are two exceptions: escapes with
digits (`\u`), for which `redaction_traces` always reports a possible secret, and entities whose `\` is doubled, which
are searched for here.
"""

import re
from typing import Final

from sandherd_worker.redaction_shapes import CANDIDATE
from sandherd_worker.redaction_traces import SecretTraces

_CANDIDATE: Final = re.compile(CANDIDATE.encode())
_URL_USER: Final = re.compile(rb"://[^ /@]{1,4096}@")
"""Matches what contains a URL's user and password: together at most 513 characters, each of at most 6 bytes in JSON."""
_ENTITY: Final = re.compile(rb"&(?:\\\\#|[A-Za-z][A-Za-z0-9]{1,30}\\\\;)")


def may_have_token(document: bytes) -> bool:
    """Whether one of the texts in a JSON document may have a token of a common format."""
    return (b"://" in document and _URL_USER.search(document) is not None) or _CANDIDATE.search(document) is not None


def may_have_secret(document: bytes, traces: SecretTraces) -> bool:
    """Whether one of the texts, keys and lists of byte values in a JSON document may have a form of a secret."""
    return (b"&" in document and _ENTITY.search(document) is not None) or traces.may_be_in(document)
