"""Commands and files: what people do in the sandbox beside its agent."""
