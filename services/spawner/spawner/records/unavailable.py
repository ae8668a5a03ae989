"""The error for a bucket that does not answer."""


class StoreUnavailableError(Exception):
    """The bucket did not answer; nothing or everything of the change may have happened, and it may be done again."""
