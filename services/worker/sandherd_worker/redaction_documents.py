r"""Whether a JSON document has certainly nothing to redact: found in its bytes, not in each of its values.

JSON escapes only `"`, `\` and control characters, and it leaves letters and digits as they are. So a document has what
`redaction_traces` and `redaction_shapes` look for if one of its texts has it: it leaves the traces of all its texts,
with more between them, and each token is in it as it is in the text. There are two exceptions: escapes with digits
(`\u`), which `redaction_traces` always takes for a secret, and entities whose `\` is doubled, which are searched here.
"""

import re
from typing import Final

from sandherd_worker.redaction_shapes import CANDIDATE
from sandherd_worker.redaction_traces import SecretTraces

_CANDIDATE: Final = re.compile(CANDIDATE.encode())
_USER: Final = re.compile(rb"://[^ /@]{1,4096}@")
"""Contains a URL's user and password, of up to 513 characters with at most 6 bytes each."""
_ENTITY: Final = re.compile(rb"&(?:\\\\#|[A-Za-z][A-Za-z0-9]{1,30}\\\\;)")


def may_have_token(document: bytes) -> bool:
    """Whether one of the texts in a JSON document may have a token of a common format."""
    return (b"://" in document and _USER.search(document) is not None) or _CANDIDATE.search(document) is not None


def may_have_secret(document: bytes, traces: SecretTraces) -> bool:
    """Whether one of the texts, keys and lists of byte values in a JSON document may have a form of a secret."""
    return (b"&" in document and _ENTITY.search(document) is not None) or traces.may_be_in(document)
