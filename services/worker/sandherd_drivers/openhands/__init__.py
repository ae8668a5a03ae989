"""The driver of OpenHands agents: a conversation of the OpenHands SDK, in this process.

`conversation` is all that knows the SDK. `telling` says its events in the worker's words, `work` runs its turns.
"""
