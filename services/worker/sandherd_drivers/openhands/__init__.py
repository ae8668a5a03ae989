"""The driver of OpenHands agents: a conversation of the OpenHands SDK, in this process.

Only `conversation` uses the SDK. `event_mapper` maps its events to the worker's, `task_work` runs its turns.
"""
