"""`wal-agent agents`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from wal_agent.cli.options import AsJson
from wal_agent.cli.screen import lines


def agents(
    json: AsJson = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the page docs/AGENTS.md on stdout.")] = False,
) -> None:
    """Which agents there are, and what each gets: hooks, intent, fail-closed, reconcile, resume, terminal, subagents,
    the tested version, and what could not be held."""
    from json import dumps

    from wal_agent.agents import AGENTS, docs_page

    known = list(AGENTS.values())
    if json:
        sys.stdout.write(dumps(docs_page.facts(known)) + "\n")
    elif markdown:
        sys.stdout.write(docs_page.markdown(known))
    else:
        lines(docs_page.rows(known))
