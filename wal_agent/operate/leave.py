"""Delete what this machine keeps of a job, for `wal-agent rm`, and all that wal-agent wrote, for `wal-agent uninstall`.

docs/LEAVING.md has the list of places. What a bucket names is deleted only where a note of this machine, which the
bucket cannot write, says that the run was one of the job's.
"""

from __future__ import annotations

import calendar
import os
import re
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from wal_agent.agents import AGENTS, installed_hooks
from wal_agent.answers import JsonAnswer, schema_name
from wal_agent.bucket.base import Bucket
from wal_agent.capture.git import Git
from wal_agent.capture.shadow import Shadow
from wal_agent.conversation.recall import index_path
from wal_agent.errors import ConfigError, LeaseHeld
from wal_agent.paths import config_dir, state_dir
from wal_agent.records import Opening
from wal_agent.recovery.restore_target import is_folder_name
from wal_agent.supervise.identity import ATTRIBUTE, known_folders
from wal_agent.supervise.machine import is_run_live, is_run_of, runtime_path, spools_dir
from wal_agent.supervise.provenance import forget_args, is_noted
from wal_agent.wal.keys import Keys
from wal_agent.wal.spool import SpoolOwner, count_segments, orphaned_spools
from wal_agent.wal.state import State

DAY = 86_400.0  # seconds between a run's opening and its restore, at most; clocks are set
_RUN = re.compile(r"[0-9a-f]{16}")


class Leaving(JsonAnswer, frozen=True, tag=schema_name("uninstall")):
    """What `wal-agent uninstall` takes out: files of agents that hold its hooks, folders that carry its mark, and its
    own folders. `unsaved`: segments in spools, which no bucket has. `stays`: what a person wrote."""

    hooks: tuple[str, ...]
    marked: tuple[str, ...]
    folders: tuple[str, ...]
    unsaved: int
    stays: tuple[str, ...]
    dry_run: bool = False  # nothing was taken out


def forget_job(env: Mapping[str, str], bucket: Bucket, keys: Keys, state: State, own: str) -> None:
    """Delete what this machine keeps of a deleted job. `state`: with the openings of its log; `own`: the run of the
    deletion. What a disk does not let go stays, and so does what another job at work in the folder uses."""
    index = index_path(bucket, keys, env)
    for path in index.parent.glob(f"{index.stem}.*"):
        path.unlink(missing_ok=True)
    for spool in orphaned_spools(spools_dir(env), SpoolOwner(keys.job, bucket.url), None):
        shutil.rmtree(spool, ignore_errors=True)
    mine = [o.opening for o in state.openings if is_noted(env, bucket.url, keys.job, o.opening)]
    _forget_copies(state_dir(env) / "jobs" / keys.job, mine)
    inside = [name for name in state.inside if all(map(is_folder_name, name.split("/")))]
    for workspace in {opening.workspace for opening in mine}:
        for name in ("", *inside):
            _forget_captures(env, Path(workspace, name))
    for run in (own, *(opening.run for opening in mine)):
        folder = runtime_path(env) / run
        if _RUN.fullmatch(run) and not is_run_live(folder):
            shutil.rmtree(folder, ignore_errors=True)
    for opening in mine:
        forget_args(env, opening.run)


def _forget_copies(folder: Path, mine: Sequence[Opening]) -> None:
    """The folder has the job's name alone, and a job of another bucket may have it too: what a restore kept of that one
    stays."""
    kept = [path for path in (folder / "pre-restore").glob("*Z-*") if path.is_dir()]
    ours = [path for path in kept if any(_is_restore_of(path.name, opening) for opening in mine)]
    if mine and len(ours) == len(kept):
        ours = [folder]
    for path in ours:
        shutil.rmtree(path, ignore_errors=True)


def _is_restore_of(name: str, opening: Opening) -> bool:
    """Whether the run of this opening made the folder: its name is a time, and the epoch of the run (prepare.py)."""
    stamp, _, epoch = name.partition("-")
    with suppress(ValueError):
        made = calendar.timegm(time.strptime(stamp, "%Y%m%dT%H%M%SZ"))
        return epoch == str(opening.epoch) and -DAY < made - opening.time < DAY
    return False


def _forget_captures(env: Mapping[str, str], workspace: Path) -> None:
    """Another job of the folder saves it whole once more at its next start."""
    shadow = Shadow.of(state_dir(env), workspace, Git(env))
    if shadow.folder.is_dir():
        with suppress(OSError), shadow.locked() as alone:
            if alone:
                shadow.wipe()


def foresee_leaving(env: Mapping[str, str]) -> Leaving:
    """Reads only. ConfigError: an agent's settings cannot be read."""
    wanted = [made(env) for agent in AGENTS.values() if (made := agent.capabilities.hooks_to_install) is not None]
    spools = spools_dir(env)
    return Leaving(
        hooks=tuple(str(installed_hooks.settings_path(w)) for w in wanted if installed_hooks.is_installed(w)),
        marked=tuple(str(f.path) for f in known_folders(env) if _is_marked(f.path, f.id)),
        folders=tuple(str(path) for path in (*_run_folders(env), state_dir(env)) if path.is_dir()),
        unsaved=sum(map(count_segments, spools.iterdir())) if spools.is_dir() else 0,
        stays=tuple(str(path) for path in (config_dir(env),) if path.is_dir()),
    )


def _run_folders(env: Mapping[str, str]) -> list[Path]:
    """The folders of runs with this state folder; there may be those of another HOME, and what a person put there."""
    runtime, state = runtime_path(env), state_dir(env)
    if not runtime.is_dir():
        return []
    return sorted(path for path in runtime.iterdir() if _RUN.fullmatch(path.name) and is_run_of(path, state))


def leave(env: Mapping[str, str]) -> Leaving:
    """Take wal-agent out; return what went. Cut off, the same call goes on. LeaseHeld: a run is alive; ConfigError: a
    disk refuses."""
    if live := [path.name for path in _run_folders(env) if is_run_live(path)]:
        raise LeaseHeld(
            f"Runs of this user and HOME are alive on this machine ({len(live)}), so nothing was removed.",
            "End them first: wal-agent list, then wal-agent stop --job NAME",
        )
    found = foresee_leaving(env)
    for agent in AGENTS.values():
        if (made := agent.capabilities.hooks_to_install) is not None:
            installed_hooks.uninstall_hooks(made(env), state_dir(env))
    for marked in found.marked:
        with suppress(OSError, AttributeError):
            os.removexattr(marked, ATTRIBUTE, follow_symlinks=False)
    for folder in found.folders:  # the state folder, whose notes say what else there is, goes last
        try:
            shutil.rmtree(folder)
        except OSError as error:
            raise ConfigError(
                f"{error.filename or folder} cannot be removed: {error.strerror or error}.",
                "Remove it by hand, then again: wal-agent uninstall",
            ) from error
    with suppress(OSError):
        runtime_path(env).rmdir()
    return found


def _is_marked(folder: Path, id: str) -> bool:
    with suppress(OSError, AttributeError):
        return os.getxattr(folder, ATTRIBUTE, follow_symlinks=False) == id.encode()
    return False
