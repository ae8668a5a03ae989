"""The artifact store has a copy of each artifact that events refer to. The stream ARTIFACTS only transports them."""
