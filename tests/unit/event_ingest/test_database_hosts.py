"""The hosts of a database's URL, each with a URL of its own."""

import pytest

from event_ingest.database_sessions import split_hosts


@pytest.mark.parametrize(
    ("url", "single"),
    [
        ("postgresql://u:p%40@h/d", ["postgresql://u:p%40@h/d"]),
        (
            "postgresql://u:p@a:1,[::1]:2/d?target_session_attrs=primary",
            [f"postgresql://u:p@{host}/d?target_session_attrs=primary" for host in ("a:1", "[::1]:2")],
        ),
        ("postgresql://a,b/d", ["postgresql://a/d", "postgresql://b/d"]),
        ("postgresql:///d?host=/a", ["postgresql:///d?host=/a"]),
        ("postgresql://u@/d?host=/a,/b", ["postgresql://u@/d?host=/a", "postgresql://u@/d?host=/b"]),
        ("postgresql:///d?host=a,b&port=1,2", ["postgresql:///d?host=a&port=1", "postgresql:///d?host=b&port=2"]),
        ("postgresql:///d?host=a,b&port=7", ["postgresql:///d?host=a&port=7", "postgresql:///d?host=b&port=7"]),
        ("postgresql:///d?host=a,b&port=1,2,3", ["postgresql:///d?host=a,b&port=1,2,3"]),
    ],
)
def test_each_host_has_a_url(url: str, single: list[str]) -> None:
    """The rest of the URL is unchanged. A URL that names hosts in another way stays as it is: asyncpg refuses it."""
    assert split_hosts(url) == single
