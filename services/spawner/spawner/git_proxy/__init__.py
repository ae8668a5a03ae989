"""A git remote for sandboxes: it serves one repository to each, and adds the forge's credential outside of it."""
