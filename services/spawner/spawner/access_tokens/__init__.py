"""Access tokens of the HTTP API: their records, and the requests that create, list and revoke them."""
