"""`sweep show`: a result in a few lines that can be passed on."""

from sweep.commands.shared import AsJson, Directory, result_at, write_json
from sweep.ranking.ranking import rank
from sweep.results.citation import DIGITS, citation_of
from sweep.results.store import Store
from sweep.show.answer import answer_of
from sweep.show.sections import say
from sweep.show.terminal import own_console


def command(directory: Directory = None, as_json: AsJson = False) -> None:
    """Print a result's short name, what to launch, how sure that is, and a line to cite it by."""
    folder = result_at(directory)
    ranking = rank(folder, per=[], top=1)
    made_from = Store(directory=folder).made_from()
    citation, run = citation_of(made_from), str(made_from["sweep"])[:DIGITS]
    answer = answer_of(ranking, folder)
    if as_json:
        write_json({"folder": str(folder), "run": run, **citation._asdict(), **answer._asdict(), "best": ranking.best})
        return
    console = own_console()
    console.print(citation.short_name)
    for told, sentence in (("", answer.launch), ("How sure: ", answer.sure)):
        if sentence:
            say(f"  {told}{sentence}.", console)
    say(
        f"  Run: {run} in {folder}, the hash of its spec, data and simulator; that of the name is without the simulator",
        console,
    )
    say(f"  Cite: {citation.cite}", console)
