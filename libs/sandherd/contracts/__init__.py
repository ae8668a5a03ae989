"""The wire contracts: what may be published on the broker, and by whom."""
