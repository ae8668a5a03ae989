"""The name and address of a database, as they are shown to operators."""

import pytest

from event_ingest.database_address import database_address, named_problem


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://localhost/sandherd", "database sandherd at localhost"),
        ("postgresql://ada:s3cret@10.0.0.5:5433/past", "database past at 10.0.0.5:5433"),
        ("postgresql://ada:s3@cret@db.example:5433/past", "database past at db.example:5433"),
        ("postgresql://ada:s3cret@[fd00::1]:5433/past?sslmode=require", "database past at [fd00::1]:5433"),
        ("postgresql://ada:s3cret@a:1,b:2/past", "database past at a:1,b:2"),
        ("postgresql:///past?host=/run/x&user=ada&password=s3cret", "database past at /run/x"),
        ("postgresql:///?host=db&port=5433&dbname=my%20past&password=s3cret", "database my past at db:5433"),
        ("postgres://ada:s3cret@db", "the database at db"),
        ("postgresql:///past", "database past at the default address"),
    ],
)
def test_name_and_address_are_shown(url: str, shown: str) -> None:
    """The name and address are shown for each form of URL that Postgres' drivers accept, without user and password."""
    assert database_address(url) == shown


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ada:s3/cret@db/past",
        "postgresql://ada:12/cret@db/past",
        "postgresql://ada:s3?cret@db/past",
        "postgresql://ada:s3#cret@db/past",
        "postgresql://ada:s3[cret@db/past",
        "postgresql:ada:s3cret",
        "ada:s3cret",
        "host=db password=s3cret",
        "",
    ],
)
def test_unescaped_password_is_not_shown(url: str) -> None:
    """If the password is not escaped, any part of the URL may be a part of it, so only the setting is named."""
    assert database_address(url) == "the database of DATABASE_URL"


def test_problem_has_the_name_and_address() -> None:
    """Without a problem there is nothing to show."""
    url = "postgresql://ada:s3cret@db/past"
    assert named_problem("TimeoutError", url) == "database past at db is unavailable: TimeoutError"
    assert named_problem(None, url) is None
