"""How things are said on the broker: connections, publishing, consuming, leases, identity."""

from sandherd.lean import load_nats

load_nats()
