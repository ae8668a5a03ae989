"""Accounts, permissions and identities on the broker."""
