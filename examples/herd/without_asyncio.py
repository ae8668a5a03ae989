"""The same without asyncio: `SyncHerd` has the methods of `Herd`, and returns when they are done."""

from sandherd.client import SyncHerd, new_task, task_spec


def main() -> None:
    """Follow a task, then run a command in a new sandbox."""
    with SyncHerd.connect() as herd:
        task = new_task()
        with herd.follow(task=task, fresh=True) as following:
            herd.submit(task_spec("Say hello", ["echo", "hello"]), task=task)
            for event in following:
                print(event.time, event.type)
        print(herd.task(task).state)
        sandbox = herd.create().sandbox
        print(herd.exec(sandbox, ["uname"]).wait().exit_code)
        herd.terminate(sandbox)


main()
