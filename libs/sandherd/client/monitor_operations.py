"""What the monitor knows of a project."""

from sandherd.client.connection import Connection
from sandherd.contracts import requests


class MonitorOperations:
    """The monitor's methods of `Herd`. Every method raises `HerdError`."""

    connection: Connection

    async def monitor_report(self) -> "requests.MonitorReport":
        """How much the live sandboxes of the project hinder each other, and which of them need a user.

        With a connection for all projects: a report of each. Raises `ServiceAwayError` if no monitor replies.
        """
        return await self.connection.request(requests.AskMonitorReport())
