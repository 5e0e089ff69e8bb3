"""The table of the commands. A command's module is imported when the command is used, or its own help asked for.

`COMMANDS` has what the list in `wal-agent --help` needs, so that this list imports no command: twelve with a sentence,
the others by name.
tests/unit/cli/test_start.py checks each sentence against the command's own help, and counts the imports.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from importlib import import_module
from typing import Annotated, Any, Final, NamedTuple

import typer
import typer.core
import typer.main

from wal_agent import __version__
from wal_agent.cli.help import Command, Examples
from wal_agent.errors import UsageError

# The others are one line of `wal-agent --help` each.
EVERYDAY: Final = frozenset(
    ("run", "resume", "status", "list", "log", "effects", "diff", "recover", "ack", "send", "stop", "doctor")
)
GROUPS: Final[dict[str, str]] = {
    "the conversation": "recall mark rewind compact trace",
    "messages": "inbox reply publish",
    "inside an agent": "task step checkpoint state settle mcp",
    "what is saved": "restore report rename rm gc",
    "who runs a job": "pause unlock",
    "many jobs": "fleet stats notify",
    "editors": "acp",
    "set up": "agents configure-hooks rules trust key uninstall",
    "try it out": "demo drill",
}


class Entry(NamedTuple):
    """A command or a group of commands."""

    where: str
    """The module below wal_agent.cli and the name in it of the function, or of the group's typer.Typer."""
    summary: str
    """The first sentence of its help."""


COMMANDS: Final[dict[str, Entry]] = {  # in the order of `wal-agent --help`
    "run": Entry(
        "run:run", "Run an agent and log what it does; after a crash, on any machine, the same command resumes it."
    ),
    "resume": Entry(
        "run:resume",
        "Run again what this folder had: its agent, its job and, after a crash, the arguments that were typed here.",
    ),
    "acp": Entry(
        "acp:acp",
        "Serve the Agent Client Protocol for an editor on stdin and stdout: each session is a job with its own log.",
    ),
    "status": Entry("status:status", "Show lease holder, phase, unsaved data, unresolved calls and crash count."),
    "list": Entry(
        "fleet:list_jobs", "List the jobs of the bucket, newest first, with their state, open calls and folder."
    ),
    "log": Entry("log:log", "Show the job's records, newest first (with --json: oldest first, one object per line)."),
    "stats": Entry("stats:stats", "Count crashes, recoveries and what they cost, over all jobs of the bucket or one."),
    "effects": Entry(
        "effects:effects",
        "List what the job changed, newest first, with a command to undo it where one is known.",
    ),
    "report": Entry(
        "report:report",
        "Write the job's log as one HTML page: starts, crashes, recoveries, calls, captures, checkpoints, steps.",
    ),
    "recover": Entry(
        "restore:recover", "Show what the next `wal-agent run` would do, and the prompt that the agent would get."
    ),
    "restore": Entry(
        "restore:restore", "Write a job's session and working tree, as they were at a place in its log, into a folder."
    ),
    "diff": Entry(
        "restore:diff",
        "Show what changed in a job's working tree: from its first saved state to its newest, or to this folder.",
    ),
    "ack": Entry(
        "intervene:ack",
        "Resolve a call or step that a crash interrupted: you checked, and say whether it happened.",
    ),
    "settle": Entry(
        "intervene:settle", "For the agent: record what you found out about a call that the recovery prompt asks about."
    ),
    "mcp": Entry(
        "mcp:mcp",
        "Serve this run's own tools to its agent over the Model Context Protocol, on stdin and stdout.",
    ),
    "recall": Entry(
        "recall:recall",
        "Search the whole conversation of a job: all runs, agents and machines, also what was compacted.",
    ),
    "mark": Entry("rewrite:mark", "Name this place in the conversation, so that `wal-agent rewind` can return to it."),
    "rewind": Entry("rewrite:rewind", "Take a job's conversation back to an earlier place."),
    "compact": Entry("rewrite:compact", "Replace the old turns of a stopped job's conversation by a summary."),
    "trace": Entry(
        "rewrite:app",
        "Show what rewinds and compactions took out of the conversation.",
    ),
    "send": Entry("messages:send", "Send a message to a job; its agent reads it at its next step or start."),
    "inbox": Entry(
        "messages:inbox",
        "Show the messages to a job: what waits, what was given to the agent, what it has seen, and what became of "
        "control messages.",
    ),
    "reply": Entry(
        "messages:reply",
        "Answer a message, once: repeating the command, also after a crash, sends nothing.",
    ),
    "publish": Entry(
        "messages:publish",
        "Publish a message of the job, once: repeating the same text and subject sends nothing.",
    ),
    "task": Entry("task:task", "Run a task in a separate job, and print only its result."),
    "step": Entry("steps:step", "Run a command at most once in the life of the job (in a tool or script of a run)."),
    "pause": Entry(
        "intervene:pause",
        "Save a job, end its agent and resume later: automatically here, or wherever the job is started.",
    ),
    "stop": Entry(
        "intervene:stop", "Stop the job's run cleanly, here or on its machine: save everything, then end the agent."
    ),
    "notify": Entry(
        "notify:notify",
        "Show where notifications go (addresses hidden), which are waiting, and which failed.",
    ),
    "unlock": Entry(
        "intervene:unlock", "Take a job away from a machine that hangs or is gone, so that any machine can run it."
    ),
    "rename": Entry(
        "intervene:rename", "Give a job a display name, which every command and `--job` take like its own name."
    ),
    "rm": Entry(
        "intervene:rm", "Delete a job from the bucket for good: conversation, files, calls, values, checkpoints."
    ),
    "gc": Entry(
        "intervene:gc", "Delete data that the job no longer needs: older than a day and covered by two snapshots."
    ),
    "configure-hooks": Entry(
        "configure_hooks:configure_hooks",
        "Choose which tools run a hook first, or install hooks in the agent's own settings.",
    ),
    "trust": Entry(
        "trust:trust",
        "Allow settings that this folder's wal-agent.toml and .wal-agent/prompts may not decide alone.",
    ),
    "key": Entry("key:app", "Show or import the key that tells your machines which jobs are yours."),
    "uninstall": Entry(
        "leave:uninstall", "Remove everything that wal-agent wrote on this machine, and show what stays."
    ),
    "agents": Entry(
        "doctor:agents",
        "List the supported agents, their tested versions, and what wal-agent can and cannot do with each.",
    ),
    "doctor": Entry(
        "doctor:doctor",
        "Prove that wal-agent works here: the bucket and, if an agent is named, its version and its hooks.",
    ),
    "demo": Entry(
        "doctor:demo",
        "Play a demo: a real CLI loses its machine three times, the last time with the folder, and recovers.",
    ),
    "drill": Entry(
        "drill:drill", "Kill and recover your own agent in a scratch folder, and count what it repeated or lost."
    ),
    "checkpoint": Entry(
        "checkpoint:app",
        "Save a summary of the job's state now, or show the saved ones.",
    ),
    "state": Entry("steps:app", "Keep small values that survive crashes: put, get, list and delete."),
    "rules": Entry(
        "rules:app",
        "Show which rule classifies a command or a tool call; check this project's own rules.",
    ),
    "fleet": Entry("fleet:app", "Manage all jobs of a bucket: list, watch and claim those that need a host."),
}


class Group(Examples, typer.core.TyperGroup):
    """A group whose help has the first sentence of each command in full."""

    def summaries(self) -> list[tuple[str, str]]:
        return [
            (name, first_sentence(command.help or "")) for name, command in self.commands.items() if not command.hidden
        ]

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(self.summaries())


class _Root(Group):
    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.commands = _Loaded()

    def summaries(self) -> list[tuple[str, str]]:
        return [(name, entry.summary) for name, entry in COMMANDS.items() if name in EVERYDAY]

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        super().format_commands(ctx, formatter)
        with formatter.section("More commands"):
            formatter.write_dl([(about, ", ".join(names.split())) for about, names in GROUPS.items()])

    def make_context(self, *given: Any, **more: Any) -> Any:
        with _reader_may_leave():
            return super().make_context(*given, **more)

    def invoke(self, ctx: Any) -> Any:
        with _reader_may_leave():
            return super().invoke(ctx)


@contextmanager
def _reader_may_leave() -> Iterator[None]:
    """End with 0 when the reader of stdout is gone, as after `| head`: typer itself exits with 1."""
    try:
        yield
    except BrokenPipeError as error:
        from wal_agent.text import drop_stdout, is_reader_gone

        if not is_reader_gone():
            raise
        drop_stdout()
        raise typer.Exit(0) from error


class _Loaded(MutableMapping[str, Any]):
    """The commands of the table by their name; each is imported when it is looked up."""

    def __init__(self) -> None:
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded:
            self._loaded[name] = _load(name, COMMANDS[name].where)
        return self._loaded[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._loaded[name] = command

    def __delitem__(self, name: str) -> None:
        del self._loaded[name]

    def __contains__(self, name: object) -> bool:
        return name in COMMANDS

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


def first_sentence(help: str) -> str:
    """Return the first sentence of a command's help as one line."""
    text = " ".join(help.split("\n\n")[0].split())
    return text.partition(". ")[0].removesuffix(".") + "."


def _load(name: str, where: str) -> Any:
    """Import a command and make typer's object of it."""
    module, _, attribute = where.partition(":")
    found = getattr(import_module(f"wal_agent.cli.{module}"), attribute)
    alone = typer.Typer(rich_markup_mode=None, add_completion=False)
    alone.callback()(lambda: None)  # makes it a group, although it has one command
    if isinstance(found, typer.Typer):
        for registered in found.registered_commands:
            registered.cls = Command
        alone.add_typer(found, name=name, cls=Group)
    else:
        settings = getattr(import_module(f"wal_agent.cli.{module}"), "CONTEXT", None)
        alone.command(name, cls=Command, context_settings=settings)(found)
    group: Any = typer.main.get_command(alone)
    return group.commands[name]


app = typer.Typer(
    name="wal-agent",
    cls=_Root,
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
        from wal_agent.text import lines

        lines(context.get_help().splitlines())
        raise typer.Exit(UsageError.exit_code)
