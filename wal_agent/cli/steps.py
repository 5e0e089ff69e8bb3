"""`wal-agent state` and `wal-agent step`: keep values, and run commands at most once, from inside of a run.

`state get` and `state list` also read any job from its bucket.
"""

from __future__ import annotations

import base64
import os
import sys
from typing import TYPE_CHECKING, Annotated, TextIO

import typer
from msgspec.structs import asdict

from wal_agent.answers import answer_json
from wal_agent.calls.quote import show_words
from wal_agent.cli.display import answer_table
from wal_agent.cli.options import HERE, AsJson, JobOptions, read_input, with_job
from wal_agent.errors import UsageError
from wal_agent.text import answer, plural, printable, say, shorten, size, timestamp

if TYPE_CHECKING:
    from wal_agent.supervise.steps import Entry, GetState

app = typer.Typer(
    help="Keep small values that survive crashes: put, get, list and delete.\n\n"
    "For a script of a long job: a cursor, a count, an id that the next run needs.",
    rich_markup_mode=None,
)
StepName = Annotated[str, typer.Argument(help="The name of the value.", metavar="STEP")]
IfVersion = Annotated[
    int | None,
    typer.Option(
        "--if-version", min=0, help="Only if this is the current version (0 = none); else exit 1.", metavar="V"
    ),
]

_TTL = "Say --ttl 30s, 10m, 2h or 7d."


@app.command("put")
def put(
    step: StepName,
    file: Annotated[
        str, typer.Argument(help="The file with the value, at most 1 MiB (default: stdin).", metavar="[FILE|-]")
    ] = "-",
    ttl: Annotated[
        str | None, typer.Option("--ttl", help="Forget it after 30s, 10m, 2h or 7d.", metavar="DURATION")
    ] = None,
    if_version: IfVersion = None,
    json: AsJson = False,
) -> None:
    """Keep a value under a name, in a tool or script of a run.

    It is in the log when the command returns, so every later run of the job has it, on any machine. The last write
    wins, unless --if-version says which one it is to follow.
    """
    from wal_agent.steps import state
    from wal_agent.supervise.pausing import parse_duration
    from wal_agent.supervise.steps import MAX_VALUE, NOT_HERE, PutState, check_name

    check_name(step)
    seconds = None if ttl is None else parse_duration(ttl, _TTL)
    if seconds is not None and seconds < 1:
        raise UsageError(f"--ttl {ttl} is not possible.", _TTL)
    if "WAL_AGENT_SOCKET" not in os.environ:
        raise UsageError(*NOT_HERE)
    data = read_input(file, MAX_VALUE)
    if len(data) > MAX_VALUE:
        raise UsageError(
            f"The value of step {step} has more than {MAX_VALUE} bytes (1 MiB).",
            "Keep it in a file, and its name here.",
        )
    version = state.put(step, data, ttl=seconds, if_version=if_version)
    if json:
        answer_json(PutState(step, version))
    else:
        say(f"step {step}: {plural(len(data), 'byte')} kept as version {version}.")


@app.command("get")
@with_job
def get(
    step: StepName,
    which: JobOptions = HERE,
    json: AsJson = False,
) -> None:
    """Write the value that is kept under a name to stdout, byte for byte; to a terminal, without control characters.

    Exit code 1 where there is none. --json: value, version, attempt (how often the job began again since), a pause that
    was asked for inside the step, and how its command went.
    """

    from wal_agent.supervise.steps import check_name

    check_name(step)
    source = _Source(which)
    entry = next(iter(source.entries(step)), None)
    data = source.value(step) if entry is not None and entry.version else None
    if json and entry is not None:
        answer_json(_with_value(entry, data))
    elif data is not None and sys.stdout.isatty():  # an agent wrote it: no escape reaches the terminal
        answer([printable(line) for line in data.decode("utf-8", "replace").splitlines()])
    elif data is not None:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    else:
        say(f"nothing is kept under {step}.")
        raise typer.Exit(1)


def _with_value(entry: Entry, data: bytes | None) -> GetState:
    from wal_agent.supervise.steps import GetState

    fields = asdict(entry)
    if data is None:
        return GetState(**fields)
    try:
        return GetState(**fields, value=data.decode())
    except UnicodeDecodeError:
        return GetState(**fields, base64=base64.b64encode(data).decode())


@app.command("list")
@with_job
def list_steps(
    which: JobOptions = HERE,
    json: AsJson = False,
) -> None:
    """List the values and steps of a job, without what they hold."""
    from wal_agent.supervise.steps import ListStates

    found = _Source(which).entries()
    if json:
        answer_json(ListStates(tuple(found)))
    elif not found:
        say("nothing is kept. In a run: wal-agent state put STEP FILE, wal-agent step NAME -- COMMAND")
    else:
        header = ("STEP", "ATTEMPT", "VERSION", "SIZE", "SINCE", "COMMAND")
        answer_table(header, [_cells(entry) for entry in found], right=("ATTEMPT", "VERSION", "SIZE"))


def _cells(entry: Entry) -> tuple[str, ...]:
    run, value = entry.run, bool(entry.version)
    since = timestamp(
        entry.time or (run.ended or run.began if run else 0.0) or (entry.paused.time if entry.paused else 0)
    )
    how = ""
    if run is not None:
        how = {"failed": f"failed ({run.code})"}.get(run.state, run.state)
        how = f"{how}: {show_words(run.command)}"
    elif entry.paused is not None:
        how = f"paused until {timestamp(entry.paused.until)}"
    version, big = (str(entry.version), size(entry.size)) if value else ("", "")
    return shorten(entry.step, 80), str(entry.attempt), version, big, since, shorten(how, 120)


@app.command("delete")
def delete(step: StepName, if_version: IfVersion = None, json: AsJson = False) -> None:
    """Forget the value under a name, in a tool or script of a run.

    The outcome of a step of this name is kept: `wal-agent step` still runs nothing twice.
    """
    from wal_agent.steps import state
    from wal_agent.supervise.steps import DeleteState

    had = state.delete(step, if_version=if_version)
    if json:
        answer_json(DeleteState(step, had))
        return
    say(f"step {step}: {'its value is deleted' if had else 'there was no value'}.")


class _Source:
    """Where values are read from: the run around this process, or a named job in its bucket."""

    def __init__(self, which: JobOptions) -> None:
        self._named = which.is_named or "WAL_AGENT_SOCKET" not in os.environ
        if not self._named:
            return
        from wal_agent.messages import open_values
        from wal_agent.steps import SavedState

        at = which.open()
        self._saved = SavedState(
            at.bucket, at.keys, at.key_id, lambda: open_values(at.settings, os.environ, at.bucket, at.keys)
        )

    def entries(self, step: str = "") -> list[Entry]:
        from wal_agent.steps import Run

        if not self._named:
            return Run().entries("get" if step else "list", step)
        if step:
            found = self._saved.entry(step)
            return [found] if found is not None else []
        return self._saved.list()

    def value(self, step: str) -> bytes | None:
        from wal_agent.steps import Run

        return self._saved.get(step) if self._named else Run().read(step, "value")


def step(
    name: Annotated[str, typer.Argument(help="Its name in the job.", metavar="NAME")],
    command: Annotated[list[str], typer.Argument(help="What runs at most once; put `--` before it.")],
    verify: Annotated[
        str,
        typer.Option(
            "--verify",
            help="Shell command that checks after a crash: exit 0 = done, 1 = not done, else unknown.",
            metavar="CMD",
        ),
    ] = "",
    retry_on_failure: Annotated[
        int,
        typer.Option("--retry-on-failure", min=0, max=100, help="Retries of a command that fails.", metavar="N"),
    ] = 0,
) -> None:
    """Run a command at most once in the life of the job (in a tool or script of a run).

    For what may happen only once: a payment, a release, a mail. Its start is in the log before it runs, and stdout,
    stderr and exit code are kept (1 MiB of each stream). Typed
    again, it prints what is kept, ends with the same exit code and runs nothing. If a crash cut it off, --verify
    decides; without it the exit code is 79, and a person settles it with `wal-agent ack NAME`.
    """
    from wal_agent.steps import shortened
    from wal_agent.steps import step as run_step

    try:
        done = run_step(name, command, verify=verify, retry_on_failure=retry_on_failure, echo=True, say=say)
    except (OSError, ValueError) as error:
        if not isinstance(error, FileNotFoundError | PermissionError | ValueError) and getattr(error, "errno", 0) != 8:
            raise
        why = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"{shorten(command[0], 80)} cannot be started: {why}.", "Nothing of it is kept.") from error
    if not done.ran:
        for stream, data in ((sys.stdout, done.stdout), (sys.stderr, done.stderr)):
            if stream is not None:
                _repeat(stream, data)
        for line in shortened(name, done):
            say(line)
        if done.by != "command":
            who = "its verification" if done.by == "verify" else "a person"
            say(f"step {name} was done, says {who}; its output was not kept.")
    elif done.paused:
        say(f"step {name} asked for a pause; the same command runs it again then.")
    raise typer.Exit(done.code)


def _repeat(stream: TextIO, data: bytes) -> None:
    """Write output that the log kept, as it was; to a terminal, without control characters."""
    stream.flush()
    if stream.isatty():
        stream.write("\n".join(map(printable, data.decode("utf-8", "replace").split("\n"))))
    else:
        stream.buffer.write(data)
    stream.flush()
