"""The common parts of every service: requests, health, diagnostics, metrics over HTTP and limits."""
