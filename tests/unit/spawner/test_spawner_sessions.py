"""Who gets a session of a browser, and which other sessions end then."""

from datetime import UTC, datetime, timedelta

import pytest

from sandherd.contracts.errors import ContractError
from sandherd.contracts.requests import CreateCode, CreateToken
from spawner.access_tokens.sessions import MAX_SESSIONS, MAX_SESSIONS_OF_USER, surplus_sessions, valid_proof
from spawner.access_tokens.token_record import TokenRecord, new_code, new_session, new_token
from spawner.records.store import StoredRecord

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
TOKEN = new_token("p1", CreateToken(name="ci", role="work", sha256="a" * 64, lifetime_seconds=600), NOW)
CODE = new_code("p1", CreateCode(role="operate", sha256="b" * 64, user="ada"), NOW)


def session(number: int, user: str = "ada") -> StoredRecord[TokenRecord]:
    record = new_session(CODE, f"{number:064x}", NOW + timedelta(seconds=number))
    return StoredRecord(record.model_copy(update={"user": user}), number)


def test_session_has_the_role_of_its_proof_and_ends_with_the_token() -> None:
    """A session names its user, and the token with which it ends. A session that a code created outlives the code."""
    of_token, of_code = new_session(TOKEN, "c" * 64, NOW), new_session(CODE, "d" * 64, NOW)
    assert (of_token.role, of_token.user, of_token.issued_by) == ("work", "token:ci", "a" * 64)
    assert of_token.expires_at == TOKEN.expires_at
    assert (of_code.role, of_code.user, of_code.issued_by) == ("operate", "ada", None)
    assert of_code.expires_at > CODE.expires_at


def test_only_a_valid_token_or_code_is_a_proof() -> None:
    """A session can't create another one, so that none is prolonged. An expired token or code is refused."""
    assert valid_proof(TOKEN, NOW) is TOKEN
    for record, now in ((None, NOW), (session(1).record, NOW), (TOKEN, TOKEN.expires_at), (CODE, CODE.expires_at)):
        with pytest.raises(ContractError):
            valid_proof(record, now)


def test_sessions_are_limited() -> None:
    """A new session ends the oldest of the same user. It never ends those of others: then it is refused."""
    own = [session(number) for number in range(MAX_SESSIONS_OF_USER)]
    others = [session(number, f"user-{number}") for number in range(MAX_SESSIONS - MAX_SESSIONS_OF_USER)]
    new = session(999).record
    assert surplus_sessions(new, own[1:]) == []
    assert surplus_sessions(new, [*own, *others]) == own[:1]
    with pytest.raises(ContractError):
        surplus_sessions(new, [session(number, f"user-{number}") for number in range(MAX_SESSIONS)])
