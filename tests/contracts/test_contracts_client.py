"""A client validates envelope and data of an event one after the other, which must make no difference."""

import json
from typing import Any

import pytest

from sandherd.contracts.decoder import read_event
from sandherd.contracts.errors import ContractError
from sandherd.contracts.subjects import event_subject


def test_client_reads_an_event_alike(event: Any) -> None:
    """A client reads and writes each event as a service does, and refuses an invalid one with the same error."""
    subject = event_subject(event.json["project"], event.json["subject"], event.name)
    found, alike = read_event(subject, event.document, separately=True), read_event(subject, event.document)
    assert (found.data, found.to_json()) == (alike.data, alike.to_json())
    broken = json.dumps(event.json | {"data": "none"}).encode()
    with pytest.raises(ContractError) as expected:
        read_event(subject, broken)
    with pytest.raises(ContractError) as refused:
        read_event(subject, broken, separately=True)
    assert refused.value.problem == expected.value.problem
