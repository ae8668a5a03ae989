"""The artifact store: what events refer to is copied there from the stream ARTIFACTS, which is only the transport."""
