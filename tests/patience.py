"""How long tests wait for an expected event."""

from typing import Final

PATIENCE: Final = 300
"""Seconds until a test gives up waiting for a condition; it only ends a test that has failed.

A limit of this kind is not an assertion about speed: on a busy machine everything takes longer by a factor that no one
knows. Do not use it where the time itself is the claim.
"""
