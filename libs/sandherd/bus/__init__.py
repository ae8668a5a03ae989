"""How things are said on the broker: connections, publishing, consuming, leases, identity."""
