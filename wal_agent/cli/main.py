"""`wal-agent`: the one place where errors become a line and an exit code.

This module imports almost nothing: the command that is asked for decides what a start has to load (cli/commands.py).
"""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

from wal_agent import __version__
from wal_agent.errors import UsageError, WalAgentError

if TYPE_CHECKING:
    import typer
    from typer.exceptions import TyperException

_NUMBERS = (  # what the parser says of a number, and what is allowed
    (r"'(?P<got>.*)' is not a valid (?:int|float)(?: range)?", "a number"),
    (r"(?P<got>\S+) is not in the range x>=([\d.]+?)", r"at least \g<3>"),
    (r"(?P<got>\S+) is not in the range ([\d.]+)<=x<=([\d.]+?)", r"\g<3> to \g<4>"),
)


def describe_misuse(error: TyperException) -> str:
    """One line: what is wrong on the command line, what was probably meant, and the page of the command it was for."""
    what = _reword(error)
    names: list[str] = []
    at = context = getattr(error, "ctx", None)  # a typer.Context; only errors of usage have one
    while at is not None and at.parent is not None:
        names.insert(0, str(at.info_name))
        at = at.parent
    said = [what if what.endswith((".", "?", "!")) else f"{what}."]
    if names == ["run"] and (option := getattr(error, "option_name", "")):
        from wal_agent.agents import AGENTS

        agent = next((word for word in sys.argv[2:] if word in AGENTS), "AGENT")
        said.append(f"Put the agent's options after `--`: wal-agent run {agent} -- {option}")
    elif context is not None and "unexpected extra argument" in what and _names_an_agent(context):
        said.append("An agent is named with --agent NAME, a job with --job NAME.")
    if context is None:  # told by the parser of options, which knows no command
        from wal_agent.cli.commands import COMMANDS

        names = [name for name in sys.argv[1:2] if name in COMMANDS]
    page = " ".join(["wal-agent", *names, "--help"])
    return f"{' '.join(said)} (see: {page})" if len(said) > 1 else f"{said[0]} See: {page}"


def _reword(error: TyperException) -> str:
    """Return the parser's sentence, with one suggestion for an option, and limits in words."""
    import re
    from difflib import get_close_matches

    what = error.format_message().strip()
    option, known = getattr(error, "option_name", ""), getattr(error, "possibilities", None)
    if option and known:
        return f"No such option: {option}. Did you mean {(get_close_matches(option, known, 1) or known)[0]}?"
    if found := re.fullmatch(r"No such command '(.*?)'\..*", what):
        from wal_agent.agents import AGENTS

        if found[1] in AGENTS:
            return f"{found[1]} is an agent, not a command. Did you mean: wal-agent run {found[1]}?"
    for pattern, allowed in _NUMBERS:
        if found := re.fullmatch(rf"Invalid value for (?P<name>.*): {pattern}\.?", what):
            name = found["name"].split(" / ")[-1].strip("'")
            return f"{name} must be {found.expand(allowed)} (got {found['got']})."
    return what


def _names_an_agent(context: typer.Context) -> bool:
    return any("--agent" in option.opts for option in context.command.params)


def main() -> None:
    """Run the command line; the exit code is the documented one (docs/OPERATIONS.md)."""
    _mend_inherited()
    try:
        if sys.argv[1:2] == ["help"]:  # as many programs have it
            sys.argv[1:] = [*sys.argv[2:], "--help"]
        if sys.argv[1:] in (["--version"], ["version"]):
            print(__version__)
            code: object = 0
        else:
            code = _run()
        if sys.stdout is not None:
            sys.stdout.flush()  # here, where a reader that went away is no news
    except WalAgentError as error:
        from wal_agent.text import name_job

        _say(name_job(str(error)))
        code = error.exit_code
    except BrokenPipeError:
        from wal_agent.text import drop_stdout

        drop_stdout()
        code = 0
    except KeyboardInterrupt:
        code = 130
    except Exception as error:  # noqa: BLE001 - the last handler there is
        from wal_agent.limits import explain, report_bug

        known = _lost_folder(error) or explain(error)
        _say(str(known) if known else report_bug(error, os.environ))
        code = known.exit_code if known else WalAgentError.exit_code
    sys.exit(code if isinstance(code, int) else 0)


def _mend_inherited() -> None:
    """Open /dev/null where stdin, stdout or stderr was closed, so that no file of ours takes its number. Take SIGCHLD
    back from a parent that ignored it: no child's exit code could be read, and each would count as 0. Leave its
    owner's rights on what is made: a folder without them is of no use, and stays."""
    os.umask(os.umask(0o077) & 0o077)
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    if sys.stdin is None:
        sys.stdin = open(os.devnull)  # noqa: PTH123, SIM115 - as long as the process


def _lost_folder(error: Exception) -> UsageError | None:
    """Return what to say where this command was typed in a folder that is gone."""
    if isinstance(error, FileNotFoundError):
        try:
            os.getcwd()  # noqa: PTH109
        except FileNotFoundError:
            return UsageError("The folder of this command was moved or deleted.", "Change to it again: cd FOLDER")
    return None


def _run() -> object:
    """Parse the command line and run its command; return the exit code."""
    from typer import Abort
    from typer.exceptions import TyperException

    from wal_agent.cli.commands import app

    try:
        return app(prog_name="wal-agent", standalone_mode=False)
    except TyperException as error:
        _say(describe_misuse(error))
        return UsageError.exit_code
    except Abort:
        return 130


def _say(line: str) -> None:
    from wal_agent.text import say

    say(line)
