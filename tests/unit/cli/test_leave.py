"""Leaving: `rm` takes what this machine keeps of the job with it, and `uninstall` all that wal-agent wrote (I7)."""

from __future__ import annotations

import json
import os
import re
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.unit.cli.shelf import KEYS, Run, Shelf, commit, intent
from wal_agent.cli.configure_hooks import configure_hooks
from wal_agent.cli.leave import describe_leaving
from wal_agent.operate.leave import Leaving
from wal_agent.records import Workspace
from wal_agent.recovery.lease_policy import recent
from wal_agent.safefs import try_lock
from wal_agent.supervise.identity import ATTRIBUTE, make_owner
from wal_agent.supervise.machine import RunDir
from wal_agent.supervise.provenance import remember_args
from wal_agent.wal.reader import replay

MINE, OTHER = "1" * 16, "2" * 16
PAGE = Path(__file__).parents[3] / "docs" / "LEAVING.md"


@pytest.fixture
def runtime(run: Run, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="wal-leave-", dir="/tmp") as folder:
        monkeypatch.setenv("WAL_AGENT_RUNTIME_DIR", f"{folder}/r")
        (Path(folder) / "r").mkdir(mode=0o700)
        yield Path(folder) / "r"


def state() -> Path:
    return Path(os.environ["HOME"]) / ".local" / "state" / "wal-agent"


def write(path: Path, text: str = "words") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def crashed(folder: Path, times: int, run: str = MINE) -> Shelf:
    """A job whose owner died that often, and whose runs this machine started."""
    shelf = Shelf(folder)
    for _ in range(times + 1):
        job = shelf.open(run, ttl=0.001)
        job.writer.append(intent(job.writer.next_call(), command="make"))
        commit(job)
    return shelf


def test_rm_takes_what_this_machine_keeps_of_the_job(run: Run, runtime: Path, tmp_path: Path) -> None:
    shelf = crashed(tmp_path / "b", 1)
    opening = replay(shelf.bucket, KEYS).state.openings[-1].opening
    for note in (MINE, OTHER):
        remember_args(os.environ, shelf.url, "shop", note, opening.args)
        RunDir.create(runtime, note).end()
    for name in ("pre-restore", "transcripts", "rewound"):
        write(state() / "jobs" / "shop" / name / "1" / "s.jsonl")
    kept = write(state() / "jobs" / "nightly" / "pre-restore" / "s.jsonl")
    assert run("recall", "make", "--job", "shop", "--bucket", shelf.url)[0] in (0, 1)
    assert run("rm", "shop", "--bucket", shelf.url, "--dry-run")[0] == 0
    assert (state() / "jobs" / "shop" / "pre-restore").is_dir()
    assert run("rm", "shop", "--bucket", shelf.url, "--yes")[0] == 0
    assert not (state() / "jobs" / "shop").exists() and kept.exists()
    assert not [p for p in (state() / "recall").glob("*") if p.is_file()]
    assert [p.name for p in (state() / "typed").iterdir()] == [OTHER]
    assert [p.name for p in runtime.iterdir()] == [OTHER], "no run of another job, and not the one that deleted it"


def test_rm_leaves_what_a_restore_kept_of_another_buckets_job_of_that_name(
    run: Run, runtime: Path, tmp_path: Path
) -> None:
    """I7: the first bucket of a folder is often the local one, and its job has the name of the later one's."""
    shelf = crashed(tmp_path / "b", 1)
    opening = replay(shelf.bucket, KEYS).state.openings[-1].opening
    remember_args(os.environ, shelf.url, "shop", MINE, opening.args)
    now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(opening.time + 60))
    folder = state() / "jobs" / "shop" / "pre-restore"
    ours = write(folder / f"{now}-{opening.epoch}" / "s.jsonl")
    theirs = [write(folder / name / "s.jsonl") for name in (f"{now}-77", f"20200101T000000Z-{opening.epoch}")]
    assert run("rm", "shop", "--bucket", shelf.url, "--yes")[0] == 0
    assert not ours.exists() and all(path.exists() for path in theirs)


def test_rm_takes_no_runs_that_only_the_bucket_names(run: Run, runtime: Path, tmp_path: Path) -> None:
    shelf = crashed(tmp_path / "b", 1)
    RunDir.create(runtime, MINE).end()
    assert run("rm", "shop", "--bucket", shelf.url, "--yes")[0] == 0
    assert [p.name for p in runtime.iterdir()] == [MINE]


def test_rm_takes_the_captures_of_the_folder(run: Run, runtime: Path, tmp_path: Path) -> None:
    from wal_agent.capture.git import Git
    from wal_agent.capture.shadow import Shadow

    shelf = crashed(tmp_path / "b", 1)
    opening = replay(shelf.bucket, KEYS).state.openings[-1].opening
    remember_args(os.environ, shelf.url, "shop", MINE, opening.args)
    shadow = Shadow.of(state(), Path(opening.workspace), Git(os.environ))
    with shadow.locked():
        shadow.ensure()
        assert run("rm", "shop", "--bucket", shelf.url, "--yes")[0] == 0
        assert shadow.born, "another job is at work in that folder"
    remember_args(os.environ, shelf.url, "shop", MINE, opening.args)
    assert run("rm", "shop", "--bucket", shelf.url, "--yes")[0] == 0
    assert not shadow.folder.exists()


def test_rm_takes_the_captures_of_repositories_inside_the_folder(run: Run, runtime: Path, tmp_path: Path) -> None:
    """And none that a name in the bucket leads to elsewhere."""
    from wal_agent.capture.git import Git
    from wal_agent.capture.shadow import Shadow

    shelf = Shelf(tmp_path / "b")
    job = shelf.open(MINE, ttl=0.001)
    for name in ("lib", "../other"):
        job.writer.append(Workspace(time=1.0, holds=0, commit="c", folder=name))
    commit(job)
    opening = replay(shelf.bucket, KEYS).state.openings[-1].opening
    remember_args(os.environ, shelf.url, "shop", MINE, opening.args)
    inside, other = (Shadow.of(state(), Path(opening.workspace, n), Git(os.environ)) for n in ("lib", "../other"))
    for shadow in (inside, other):
        with shadow.locked():
            shadow.ensure()
    assert run("rm", "shop", "--bucket", shelf.url, "--yes")[0] == 0
    assert not inside.folder.exists() and other.born


def test_a_new_job_of_the_name_has_no_old_crashes(run: Run, runtime: Path, tmp_path: Path) -> None:
    shelf = crashed(tmp_path / "b", 4)
    assert run("rm", "shop", "--bucket", shelf.url, "--yes")[0] == 0
    job = shelf.open("new")
    found = replay(shelf.bucket, KEYS)
    last = found.state.openings[-1].opening
    assert found.damage is None and recent(found.state, last, 1e9) == ()
    code, out, _ = run("status", "--job", "shop", "--bucket", shelf.url, "--json")
    assert code == 0 and not json.loads(out)["crashes"]
    assert job.writer.state.opened > 4, "the openings that lock old runs out are still counted"


def test_uninstall_leaves_agents_and_folders_as_before(run: Run, runtime: Path, tmp_path: Path) -> None:
    home = Path(os.environ["HOME"])
    settings = write(home / ".claude" / "settings.json", '{\n  "model": "opus" // mine\n}\n')
    before = settings.read_bytes()
    session = write(home / ".claude" / "projects" / "-shop" / "s.jsonl")
    own = write(home / ".config" / "wal-agent" / "wal-agent.toml", "")
    make_owner(Path.cwd(), os.environ)
    configure_hooks(agent="claude", install=True)
    configure_hooks(agent="gemini", install=True)
    RunDir.create(runtime, MINE, state()).end()
    foreign = write(runtime / "not-ours")
    other = RunDir.create(runtime, OTHER, home / "of-another-home")  # it is alive
    code, out, _ = run("uninstall", "--dry-run", "--json")
    foreseen = json.loads(out)
    assert code == 0 and settings.read_bytes() != before and state().is_dir()
    assert set(foreseen["folders"]) == {str(state()), str(runtime / MINE)}
    assert run("uninstall")[0] == 79 and state().is_dir()
    code, out, err = run("uninstall", "--yes", "--json")
    assert code == 0, err
    assert json.loads(out) == foreseen | {"dry_run": False}
    assert settings.read_bytes() == before and not (home / ".gemini" / "settings.json").exists()
    assert session.exists() and own.exists() and foreign.exists() and other.lock.exists()
    other.end()
    assert not state().exists() and not (runtime / MINE).exists()
    assert not hasattr(os, "listxattr") or ATTRIBUTE not in os.listxattr(Path.cwd())
    code, out, _ = run("uninstall", "--yes")
    assert code == 0 and "nothing" in out


def test_uninstall_is_refused_while_a_run_is_alive(run: Run, runtime: Path) -> None:
    made = RunDir.create(runtime, MINE, state())
    kept = write(state() / "person")
    try:
        assert not try_lock(os.open(made.lock, os.O_RDWR))
        assert run("uninstall", "--yes")[0] == 75 and kept.exists()
    finally:
        made.end()


def test_the_page_names_each_place() -> None:
    """A folder of the user's state that the program makes, and that the page does not name, would be a surprise."""
    page, source = PAGE.read_text(), Path(__file__).parents[3] / "wal_agent"
    text = "\n".join(path.read_text() for path in source.rglob("*.py"))
    made = set(re.findall(r'\bstate_dir\([\w.]*env\w*\)(?:\.absolute\(\))? / "(\w+)"', text)) - {"person"}
    made |= {"workspaces", "notify", "mirrors", "sessions", "installed"}  # named by a constant, or relative to it
    assert len(made) > 12 and [name for name in sorted(made) if f"`{name}/`" not in page] == []


def test_the_folders_of_runs_are_counted_in_one_line() -> None:
    found = Leaving((), (), ("/tmp/w/1", "/tmp/w/2", "/tmp/w/3", "/s/wal-agent"), 0, ())
    assert describe_leaving(found, "removed")[:-1] == ["removed:", "  3 folders of runs in /tmp/w", "  /s/wal-agent"]
    assert describe_leaving(replace(found, folders=("/tmp/w/1",)), "removed")[1] == "  /tmp/w/1"
