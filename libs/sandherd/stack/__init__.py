"""Everything on one machine: an embedded broker and database, and the services as processes."""
