"""`wal-agent recover --dry-run`, `restore` and `diff`: what a start would do, the files of a job in a folder, and what
the job changed in them."""

from __future__ import annotations

import os
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec.structs import replace

from wal_agent.agents import unknown_agent_error
from wal_agent.answers import answer_json
from wal_agent.cli.display import DIFF, answer_lines
from wal_agent.cli.job import ANY_AGENT, NAMES, settings_for
from wal_agent.cli.options import HERE, AsJson, JobOptions, with_job
from wal_agent.clock import SystemClock
from wal_agent.errors import BucketError, Damaged, LeaseHeld, UsageError
from wal_agent.redact import redact
from wal_agent.safefs import real_path
from wal_agent.text import answer, lines, moment, plural, say, size, timestamp

if TYPE_CHECKING:
    from wal_agent.operate.export import Exported, Restore
    from wal_agent.wal.reader import Replay


@with_job
def recover(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan and the prompt; change nothing.")] = False,
    which: JobOptions = HERE,
    as_json: AsJson = False,
) -> None:
    """Show what the next `wal-agent run` would do, and the prompt that the agent would get.

    It reads all that a recovery would read, and changes nothing: no lease is taken, no file is restored, no process is
    ended. The recovery itself is `wal-agent run`.
    """
    from wal_agent.operate.dry_run import foresee_start, show_foreseen

    if not dry_run:
        raise UsageError(
            "A recovery is part of a start.",
            "Use `wal-agent run`, or look first: wal-agent recover --dry-run, or take its files: wal-agent restore",
        )
    at = which.open(as_a_run=True)
    name = at.agent.name
    seen = foresee_start(at.bucket, at.keys, at.workspace, name, at.settings, os.environ, at.key_id, at.options())
    if as_json:
        answer_json(show_foreseen(seen))
        return
    answer([f"{seen.plan} (nothing was changed)", *seen.rows])
    if seen.prompt:
        answer(["", "The agent would read:", "", *seen.prompt.splitlines()])


At = Annotated[
    str | None,
    typer.Option(
        "--at",
        help="A record's number (`wal-agent log`) or a time (local, or with its zone). Default: now.",
        metavar="RECORD|TIME",
    ),
]


@with_job
def restore(
    name: Annotated[str | None, typer.Argument(help="With --kept: its number or name.", metavar="[N]")] = None,
    to: Annotated[
        Path | None, typer.Option("--to", help="The folder to write to (new or empty).", metavar="DIR")
    ] = None,
    kept: Annotated[
        bool,
        typer.Option(
            "--kept", help="List the files that restores replaced in this folder; with N: bring these back here."
        ),
    ] = False,
    at: At = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace files of the same name in an existing folder.")
    ] = False,
    which: JobOptions = HERE,
    as_json: AsJson = False,
) -> None:
    """Write a job's session and working tree, as they were at a place in its log, into a folder.

    If the log is damaged, it writes what can be read, names the newest record that is complete, and exits with 73. It
    only reads the job, which may run meanwhile.

    `--kept` is about this folder: a recovery that replaced files here kept them. Bringing them back keeps the files
    that they replace.
    """
    from wal_agent.operate.export import export_job
    from wal_agent.supervise.ancestry import outer_runs, person_needed
    from wal_agent.wal.damage import CheckedBlobs, newest_restorable, restore_hint

    if kept:
        if to is not None or at is not None or force or as_json:
            raise UsageError("--kept goes alone, or with the number of what it lists.")
        _restore_kept(name, which)
        return
    if to is None or name is not None:
        raise UsageError(
            "Say where the files are to go, or which kept ones are to come back.",
            "Use: wal-agent restore --to DIR, or: wal-agent restore --kept",
        )
    folder = real_path(to)
    for above in outer_runs():  # an agent may look at what was saved, beside its own work
        if force or above.workspace is None or folder.is_relative_to(above.workspace):
            raise person_needed(f"wal-agent restore --to {to}", above)
    chosen = which.open()
    found = chosen.read_log(at)
    if not found.state.files and found.state.workspace is None:
        why = f"{found.damage.why} " if found.damage else ""
        raise Damaged(f"{why}Up to record {found.seq} of job {chosen.keys.job} nothing was saved.")
    session, env = found.state.session, dict(os.environ)
    done = export_job(
        found,
        chosen.store,
        to.absolute(),
        lambda name: chosen.agent.restore_path(name, session, chosen.workspace, env),
        env,
        force=force,
    )
    summary = _describe_export(found, done, to.absolute())
    if done.short:
        more = f", and {len(done.short) - 3} more" if len(done.short) > 3 else ""
        whole = newest_restorable(chosen.bucket, chosen.keys, found.seq, CheckedBlobs(), chosen.blobs)
        if whole is not None and whole.seq == found.seq:
            whole = None  # the bytes are those that were saved, and yet make no session or tree
        hint = restore_hint(whole, chosen.keys, chosen.options())
        raise Damaged(f"{summary} Not whole: {'; '.join(done.short[:3])}{more}.", hint)
    say(summary)
    lines(_rows(found))
    if as_json:
        answer_json(_facts(found, done, to.absolute()))


@with_job
def diff(
    since: Annotated[
        str | None,
        typer.Option(
            "--since",
            help="Start at the working tree as of this record or time (default: the first saved one).",
            metavar="RECORD|TIME",
        ),
    ] = None,
    here: Annotated[
        bool, typer.Option("--here", help="Compare the newest saved working tree with the files of this folder.")
    ] = False,
    names: Annotated[bool, typer.Option("--names", help="Print only the names of the files.")] = False,
    which: JobOptions = HERE,
    as_json: AsJson = False,
) -> None:
    """Show what changed in a job's working tree: from its first saved state to its newest, or to this folder.

    Reads only. The first state is saved some seconds after the first start, so a change before that is not shown.
    Secrets are redacted: for the exact bytes use `wal-agent restore`.
    """

    from wal_agent.agents import AGENTS
    from wal_agent.paths import state_dir
    from wal_agent.recovery.compare_trees import Comparison, Diff, first_capture
    from wal_agent.recovery.report import one_line
    from wal_agent.recovery.restore_target import RestoreTarget
    from wal_agent.supervise.worktree import never_captured, too_wide
    from wal_agent.wal.damage import sound_state

    if here and since is not None:
        raise UsageError("--here compares with the newest saved state, so --since does not go with it.")
    at = which.open()
    clock, env = SystemClock(), dict(os.environ)
    newest = at.read_log()
    first = newest if here else first_capture(at.bucket, at.keys) if since is None else None
    if first is None:
        first = at.read_log(since)
    for found in (newest, first):
        sound_state(found)
    old, new = first.state.workspace, newest.state.workspace
    if new is None or old is None:
        raise UsageError(f"No working tree of job {at.keys.job} was saved up to record {first.seq}.")
    if here and (why := too_wide(at.workspace, env)):
        raise UsageError(f"The files of {at.workspace} are not compared: {why}.")
    private = tuple(never_captured(at.settings, AGENTS.get(at.name) or AGENTS[ANY_AGENT], env, at.workspace))
    target = RestoreTarget(at.workspace, state_dir(env), env, private, at.keys.job)
    shows = not names and not as_json
    asked = Comparison(target, at.blobs, first.state, newest.state, clock.now() if here else None, shows)
    top, inside = asked.workspace(), dict(asked.inside())
    for name, each in inside.items():
        if each.why:
            say(f"the repository in {one_line(name, 80)} is not compared: {one_line(each.why, 200)}")
    changes = [change for each in (top, *inside.values()) for change in each.files]
    end = None if here else newest.seq
    if as_json:
        answer_json(Diff(at.keys.job, first.seq, end, tuple(replace(each, path=redact(each.path)) for each in changes)))
        return
    last = f"this folder, {at.workspace}" if here else f"record {newest.seq} ({timestamp(new.time)})"
    what = plural(len(changes), "file") if changes else "no file"
    differ = "differ" if len(changes) > 1 else "differs"
    say(f"job {at.keys.job}: {what} {differ} from record {first.seq} ({timestamp(old.time)}) to {last}")
    patch = "".join(each.patch for each in (top, *inside.values()))
    answer_lines([f"{each.change:<8} {each.path}" for each in changes] if names else patch.splitlines(), DIFF)


def _restore_kept(name: str | None, which: JobOptions) -> None:
    """List what restores replaced in this folder, or bring one of them back into it. UsageError, ConfigError;
    LeaseHeld: a job runs in this folder."""
    from wal_agent.agents import AGENTS
    from wal_agent.capture.git import Git
    from wal_agent.paths import state_dir
    from wal_agent.recovery.report import describe_changes, describe_names
    from wal_agent.recovery.restore_target import KeptFiles, RestoreTarget, list_kept
    from wal_agent.recovery.restore_workspace import restore_kept
    from wal_agent.supervise.ancestry import require_person
    from wal_agent.supervise.worktree import never_captured

    env, workspace, now = dict(os.environ), Path.cwd().resolve(), SystemClock().now()
    target = RestoreTarget(workspace, state_dir(env), env)
    found = list_kept(target)

    def describe(kept: KeptFiles) -> str:
        count, names = kept.backup.uncommitted(kept.save)
        lost = f"; no commit has {describe_names(count, names)}" if count else ""
        files = plural(kept.backup.count_files(Git(env), kept.save), "file")
        return f"{kept.name}  {moment(kept.time, now)}  {files}{lost}"

    if name is None:
        answer([f"{n:>3}  {describe(each)}" for n, each in enumerate(found, 1)])
        hint = "bring one back: wal-agent restore --kept N" if found else f"no restore replaced files in {workspace}."
        say(hint)
        return
    agent = which.agent or ANY_AGENT
    if agent not in AGENTS:
        raise unknown_agent_error(agent)
    require_person(f"wal-agent restore --kept {name}")
    chosen = next((each for n, each in enumerate(found, 1) if name in (str(n), each.name)), None)
    if chosen is None:
        raise UsageError(
            f"Nothing that is kept for {workspace} is called {name[:60]!r}.", "See: wal-agent restore --kept"
        )
    settings = settings_for(agent, workspace, {"bucket": which.bucket, "job": which.job}, NAMES)
    _refuse_beside_run(settings.bucket, workspace)
    private = tuple(never_captured(settings, AGENTS[agent], env, workspace))
    target = RestoreTarget(workspace, target.state_dir, env, private)
    changes, backup = restore_kept(target, chosen, now)
    say(f"the files of {moment(chosen.time, now)} are back in {workspace}: {describe_changes(changes)}.")
    if backup is not None:
        say(f"what was here is kept: wal-agent restore --kept {KeptFiles(backup, backup.saves[-1], 0.0).name}")


def _refuse_beside_run(url: str, workspace: Path) -> None:
    """LeaseHeld: an agent works in this folder. A bucket that cannot be asked is passed over: all of this is local."""

    from wal_agent.bucket import open_bucket
    from wal_agent.fleet.jobs import find_folder_jobs

    with suppress(BucketError), closing(open_bucket(url)) as bucket:
        for each in find_folder_jobs(bucket, workspace, os.environ):
            if each.job.state == "running":
                raise LeaseHeld(f"Job {each.job.job} runs in this folder now. Nothing was changed.", "Stop it first.")


def _describe_export(found: Replay, done: Exported, folder: Path) -> str:

    why = f"{found.damage.why} " if found.damage else ""
    what = f"{plural(len(done.files), 'file')} ({size(sum(done.files.values()))}) of session {found.state.session[:8]}"
    if done.tree_files is not None:
        what += f" and a working tree of {plural(done.tree_files, 'file')}"
    replaced = f" {plural(done.replaced, 'file')} there replaced;" if done.replaced else ""
    place = f"as of record {found.seq} ({timestamp(found.time)}), are in {folder}"
    return f"{why}{what}, {place};{replaced} nothing else was changed."


def _rows(found: Replay) -> list[str]:
    """What one must know of that place: which calls ran then, and which call's effects the tree has."""
    from wal_agent.cli.view import preview
    from wal_agent.records import state_text
    from wal_agent.recovery.report import describe_pending, one_line, row

    state = found.state
    rows = []
    if state.open:
        shown = ", ".join(
            f"#{o.intent.call} {one_line(preview(o.intent.input, 60), 60)} ({state_text(o.state)})"
            for o in state.open[:3]
        )
        rows.append(row("open", f"{plural(len(state.open), 'call')} then: {shown}"))
    if (tree := state.workspace) is None:
        rows.append(row("tree", "no working tree had been saved then"))
    else:
        rows.append(row("tree", f"saved at {timestamp(tree.time)}, with the effects of calls up to #{tree.holds}"))
        if tree.pending is not None:
            rows.append(row("", f"not in it yet: {describe_pending(tree.pending, one_line)}"))
        if tree.left_out:
            more = f", and {tree.left_out_more} more" if tree.left_out_more else ""
            rows.append(row("", f"not in it: {'; '.join(one_line(text, 80) for text in tree.left_out[:3])}{more}"))
    return rows


def _facts(found: Replay, done: Exported, folder: Path) -> Restore:
    from wal_agent.operate.export import Restore

    tree = found.state.workspace
    return Restore(
        record=found.seq,
        time=found.time,
        folder=redact(str(folder)),
        session=found.state.session,
        session_files={redact(name): size for name, size in done.files.items()},
        tree_files=done.tree_files,
        tree_holds=tree.holds if tree else None,
        replaced=done.replaced,
        open_calls=tuple(o.intent.call for o in found.state.open),
    )
