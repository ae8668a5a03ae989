"""Whose a process is, where an agent and several commands have started some in one sandbox."""

import os

from sandherd_worker.processes import EXEC_VARIABLE, Parent, below, descendants, parents, variables_of


class Families:
    """The commands that run beside the agent, by the processes that they were started as.

    A process is a command's if it descends from it, is in its session, or carries its mark in its environment. One
    that has left all three behind counts as the agent's.
    """

    def __init__(self) -> None:
        self._leaders: dict[str, int] = {}

    def enter(self, name: str, leader: int) -> None:
        """This command was started as this process, the leader of a session."""
        self._leaders[name] = leader

    def leave(self, name: str) -> None:
        """Nothing of this command is left."""
        self._leaders.pop(name, None)

    def of(self, name: str) -> set[int]:
        """The living processes of a command."""
        table = parents()
        mine = below({os.getpid()}, table)
        return self._of(name, mine, table)

    def agents(self) -> set[int]:
        """The living processes below the worker that are no command's."""
        if not self._leaders:
            return descendants()
        table = parents()
        mine = below({os.getpid()}, table)
        return mine.difference(*(self._of(name, mine, table) for name in self._leaders))

    def _of(self, name: str, mine: set[int], table: dict[int, Parent]) -> set[int]:
        leader = self._leaders.get(name)
        mark = f"{EXEC_VARIABLE}={name}".encode()
        roots = {
            process
            for process in mine
            if process == leader or table[process][1] == leader or mark in variables_of(process)
        }
        return roots | below(roots, table) & mine
