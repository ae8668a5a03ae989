"""What may be said on the broker, and who may say it."""
