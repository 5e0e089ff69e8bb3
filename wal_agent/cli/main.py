"""`wal-agent`: the one place where errors become a line and an exit code."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer
import typer.core
from typer.exceptions import TyperException

from wal_agent import __version__
from wal_agent.cli import (
    checkpoint,
    configure_hooks,
    doctor,
    fleet,
    intervene,
    log,
    notify,
    options,
    recall,
    restore,
    rules,
    run,
    stats,
    status,
    steps,
)
from wal_agent.cli.help import Command, Examples
from wal_agent.errors import UsageError, WalAgentError
from wal_agent.limits import exhausted, report_bug
from wal_agent.text import lines, say


class _Commands(Examples, typer.core.TyperGroup):
    """A group whose help has the first sentence of each command in full."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        rows = [
            (name, " ".join((command.help or "").split("\n\n")[0].split()))
            for name, command in self.commands.items()
            if not command.hidden
        ]
        with formatter.section("Commands"):
            formatter.write_dl([(name, text.partition(". ")[0].removesuffix(".") + ".") for name, text in rows])


app = typer.Typer(
    name="wal-agent",
    cls=_Commands,
    help="Runs a coding-agent CLI so that its work survives the loss of its machine at any moment.",
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)


@app.callback(invoke_without_command=True)
def top(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        print(__version__)
        raise typer.Exit
    if context.invoked_subcommand is None:
        lines(context.get_help().splitlines())
        raise typer.Exit(UsageError.exit_code)


app.command("run", context_settings=run.CONTEXT)(run.run)
app.command("resume", context_settings=run.CONTEXT)(run.resume)
app.command("status")(status.status)
app.command("list")(fleet.list_jobs)
app.command("log")(log.log)
app.command("stats")(stats.stats)
app.command("recover")(restore.recover)
app.command("restore")(restore.restore)
app.command("diff")(restore.diff)
app.command("ack")(intervene.ack)
app.command("settle")(intervene.settle)
app.command("recall")(recall.recall)
app.add_typer(checkpoint.app, name="checkpoint", cls=_Commands)
app.add_typer(steps.app, name="state", cls=_Commands)
app.command("step")(steps.step)
app.command("pause")(intervene.pause)
app.command("stop")(intervene.stop)
app.add_typer(rules.app, name="rules", cls=_Commands)
app.command("notify")(notify.notify)
app.add_typer(fleet.app, name="fleet", cls=_Commands)
app.command("unlock")(intervene.unlock)
app.command("rm")(intervene.rm)
app.command("gc")(intervene.gc)
app.command("configure-hooks")(configure_hooks.configure_hooks)
app.command("trust")(options.trust)
app.command("agents")(doctor.agents)
app.command("doctor")(doctor.doctor)
app.command("demo")(doctor.demo)
for each in (app, rules.app, fleet.app, checkpoint.app, steps.app):
    for registered in each.registered_commands:
        registered.cls = Command


def describe_misuse(error: TyperException) -> str:
    """One line: what is wrong on the command line, what was probably meant, and the page of the command it was for."""
    what = error.format_message().strip()
    names: list[str] = []
    at = context = getattr(error, "ctx", None)  # a typer.Context; only errors of usage have one
    while at is not None and at.parent is not None:
        names.insert(0, str(at.info_name))
        at = at.parent
    said = [what if what.endswith((".", "?", "!")) else f"{what}."]
    if names == ["run"] and (option := getattr(error, "option_name", "")):
        said.append(f"Put the agent's options after `--`: wal-agent run AGENT -- {option}")
    elif context is not None and "unexpected extra argument" in what and _names_an_agent(context):
        said.append("An agent is named with --agent NAME, a job with --job NAME.")
    if context is None:  # told by the parser of options, which knows no command
        names = [name for name in sys.argv[1:2] if name in {command.name for command in app.registered_commands}]
    page = " ".join(["wal-agent", *names, "--help"])
    return f"{' '.join(said)} (see: {page})" if len(said) > 1 else f"{said[0]} See: {page}"


def _names_an_agent(context: typer.Context) -> bool:
    return any("--agent" in option.opts for option in context.command.params)


def main() -> None:
    """Run the command line; the exit code is the documented one (README, "Exit codes")."""
    try:
        code = app(standalone_mode=False)
        if sys.stdout is not None:
            sys.stdout.flush()  # here, where a reader that went away is no news
    except TyperException as error:
        say(describe_misuse(error))
        code = UsageError.exit_code
    except typer.Abort:
        code = 130
    except WalAgentError as error:
        say(str(error))
        code = error.exit_code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except KeyboardInterrupt:
        code = 130
    except Exception as error:  # noqa: BLE001 - the last handler there is
        limit = exhausted(error)
        say(str(limit) if limit else report_bug(error, os.environ))
        code = limit.exit_code if limit else WalAgentError.exit_code
    sys.exit(code if isinstance(code, int) else 0)
