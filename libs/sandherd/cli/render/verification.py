"""Shows the result of `sandherd history verify`."""

from sandherd.cli.name_prefixes import full_name
from sandherd.cli.options import Format
from sandherd.cli.render import console
from sandherd.cli.stderr import print_error
from sandherd.client.herd import Herd
from sandherd.client.terminal_text import write_text
from sandherd.contracts.requests import HistoryDifference, Verification
from sandherd.plurals import pluralize

_HEADER = ("TABLE", "PROJECT", "NAME", "FIELD", "STORED", "BY EVENTS")


async def show(herd: Herd, name: str | None, output: Format) -> int:
    """Show how tables of the history differ from its events, for one sandbox or for all that the user may read.

    Returns 0 if there are no differences, else 1.
    """
    sandbox = None if name is None else await full_name(herd, name)
    verification = _joined([page async for page in herd.verify_history(sandbox)])
    if output.is_json:
        console.print_document(output, verification)
    else:
        if verification.differences:
            console.print_table(_HEADER, [_row(difference) for difference in verification.differences])
            write_text()
        console.print_facts(
            {
                "compared": verification.entities,
                "incomplete": verification.incomplete,
                "differences": verification.difference_count,
            }
        )
    if verification.difference_count:
        print_error(
            f"the history's tables have {pluralize(verification.difference_count, 'difference')} from its events"
        )
    return 1 if verification.difference_count else 0


def _joined(pages: list[Verification]) -> Verification:
    return Verification(
        entities=sum(page.entities for page in pages),
        incomplete=sum(page.incomplete for page in pages),
        differences=[difference for page in pages for difference in page.differences],
        difference_count=sum(page.difference_count for page in pages),
    )


def _row(history_difference: HistoryDifference) -> list[object]:
    return [
        history_difference.table,
        history_difference.project,
        history_difference.name,
        history_difference.field or "-",
        history_difference.stored,
        history_difference.by_events,
    ]
