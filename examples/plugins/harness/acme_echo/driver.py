"""The driver of the kind `echo`, which the worker starts in the sandbox: `python -m acme_echo.driver`."""

from sandherd_drivers.wire import Begin, Interrupt, Message, Stop, Wire, run


async def main(wire: Wire) -> None:
    """Repeat the task, and end."""
    async for command in wire.commands():
        match command:
            case Begin(task=task, harness=harness):
                wire.report_ready()
                wire.report_turn(1, "running")
                for _ in range(harness["times"]):
                    wire.publish_event("agent.message", content=task, content_length=len(task))
                wire.report_turn(1, "idle")
                wire.report_result(final_output=task)
                return
            case Message(message=message):
                wire.report_refused(message, "it takes no messages")
            case Interrupt() | Stop():
                return


if __name__ == "__main__":
    run(main)
