"""Commands and files: what users do in the sandbox beside its agent."""
