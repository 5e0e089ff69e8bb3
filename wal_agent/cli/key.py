"""`wal-agent key`: the key with which this person's runs sign what they write into a bucket."""

from __future__ import annotations

import os
import sys

import typer

from wal_agent.cli.options import require_subcommand
from wal_agent.errors import ConfigError
from wal_agent.text import answer, say

app = typer.Typer(
    help="Show or import the key that tells your machines which jobs are yours.",
    rich_markup_mode=None,
)


@app.callback(invoke_without_command=True)
def top(context: typer.Context) -> None:
    require_subcommand(context)


@app.command("show")
def show() -> None:
    """Print your key, for your other machines, and make it where there is none.

    A start there carries on with the jobs of this key without a question. On another machine: `wal-agent key show | ssh
    HOST wal-agent key import`; in a pod: a secret in a file that WAL_AGENT_PERSON_KEY_FILE names. Keep it to yourself:
    who has it can write jobs that your machines take for yours.
    """
    from wal_agent.supervise.ancestry import require_person
    from wal_agent.supervise.identity import KEY_FILE, make_person_key
    from wal_agent.supervise.machine import state_dir

    require_person("wal-agent key show")
    key = make_person_key(os.environ)
    if not key:
        raise ConfigError(f"{state_dir(os.environ) / KEY_FILE} cannot be written, so there is no key.")
    answer([key.hex()])


@app.command("import")
def import_() -> None:
    """Read your key from stdin, as `wal-agent key show` prints it. Refused where another key is in use."""
    from wal_agent.bucket.encryption import MAX_KEY_TEXT, parse_key
    from wal_agent.supervise.ancestry import require_person
    from wal_agent.supervise.identity import KEY_FILE, person_key, store_person_key
    from wal_agent.supervise.machine import state_dir

    require_person("wal-agent key import")
    key = parse_key(sys.stdin.buffer.read(MAX_KEY_TEXT), "what was given on stdin").secret
    own = state_dir(os.environ) / KEY_FILE
    try:
        if person_key(os.environ) != key:
            store_person_key(os.environ, key)
    except FileExistsError:
        raise ConfigError(
            f"This machine signs with another key already: {own}. Nothing was changed.",
            f"If its jobs need it no longer, remove that file and import again: rm {own}",
        ) from None
    except OSError as error:
        raise ConfigError(f"{own} cannot be written: {error.strerror}.") from None
    say("imported. Jobs that are signed with this key are carried on here without a question.")
