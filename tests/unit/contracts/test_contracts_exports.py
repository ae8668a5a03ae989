"""The exports of `sandherd.contracts.requests`, which imports its names on first use."""

from sandherd.contracts import requests


def test_every_name_is_imported_and_listed() -> None:
    """`import *` and `dir` have the names of the table, and each is in its module."""
    found: dict[str, object] = {}
    exec("from sandherd.contracts.requests import *", found)
    assert {"TaskView", "REQUESTS", "ExecKill"} <= set(requests.__all__)
    assert set(requests.__all__) <= found.keys() & set(dir(requests))
