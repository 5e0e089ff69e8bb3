"""A bucket inside the workspace, or around it, is refused, by whatever name it is reached."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.security.conftest import Clone
from wal_agent.config import Consents
from wal_agent.errors import ConfigError
from wal_agent.supervise.settings import find_overlap, load, parse_mounts, wants_of

Trick = Callable[[Path, Path], str]  # of the workspace and a folder beside it: the bucket's URL


def by_link(work: Path, beside: Path) -> str:
    (work / "deep").mkdir()
    (beside / "link").symlink_to(work / "deep")
    return f"file://{beside}/link/b"


def by_dangling_link(work: Path, beside: Path) -> str:
    (beside / "link").symlink_to(work / "not yet")
    return f"file://{beside}/link"


def by_dev_fd(work: Path, beside: Path) -> str:
    return f"file:///dev/fd/{os.open(work, os.O_RDONLY | os.O_DIRECTORY)}/.b"


TRICKS: dict[str, Trick] = {
    "plain": lambda work, beside: f"file://{work}/.b",
    "a path": lambda work, beside: f"{work}/a/b/c",
    "itself": lambda work, beside: f"file://{work}",
    "dots": lambda work, beside: f"file://{beside}/../{work.name}/.b",
    "escaped": lambda work, beside: f"file://{beside}/%2e%2e/{work.name}/.b",
    "link": by_link,
    "dangling link": by_dangling_link,
    "/proc/self/cwd": lambda work, beside: "file:///proc/self/cwd/.b",
    "/proc/thread-self/cwd": lambda work, beside: "file:///proc/thread-self/cwd/.b",
    "/proc/PID/cwd": lambda work, beside: f"file:///proc/{os.getpid()}/cwd/.b",
    "/proc/PID/root": lambda work, beside: f"file:///proc/{os.getpid()}/root{work}/.b",
    "/dev/fd": by_dev_fd,
}


@pytest.mark.skipif(sys.platform != "linux", reason="/proc and /dev/fd are Linux's")
@pytest.mark.parametrize("by", ["--bucket", "WAL_AGENT_BUCKET", "own file", "project, allowed"])
@pytest.mark.parametrize("trick", TRICKS)
def test_a_bucket_in_the_workspace_is_refused_whoever_named_it(clone: Clone, trick: str, by: str) -> None:
    beside = clone.folder.with_name("beside")
    beside.mkdir()
    url, flags, env = TRICKS[trick](clone.folder, beside), {}, clone.env
    if by == "--bucket":
        flags = {"bucket": url}
    elif by == "WAL_AGENT_BUCKET":
        env[by] = url
    elif by == "own file":
        clone.person(f'bucket = "{url}"')
    else:
        clone.says(f'bucket = "{url}"')
    if by == "project, allowed":
        with pytest.raises(ConfigError, match="is inside the workspace"):
            wants_of(clone.folder, env)
    with pytest.raises(ConfigError, match="is inside the workspace") as refused:
        load("gemini", clone.folder, env, flags)
    assert refused.value.exit_code == 78 and "--bucket" in refused.value.hint
    assert not (clone.folder / ".b").exists()


def test_a_workspace_in_the_buckets_folder_is_refused(clone: Clone) -> None:
    (clone.folder.parent / "link").symlink_to(clone.folder.parent)
    for url in (clone.folder.parent.as_uri(), f"file://{clone.folder.parent}/link", "file:///"):
        with pytest.raises(ConfigError, match="is inside the bucket's folder"):
            load("gemini", clone.folder, clone.env, {"bucket": url})


def test_folders_side_by_side_are_fine(clone: Clone) -> None:
    for name in ("bucket", "clone2", "clon"):
        assert load("gemini", clone.folder, clone.env, {"bucket": str(clone.folder.parent / name)})
        (clone.folder.parent / name).mkdir()
        assert load("gemini", clone.folder, clone.env, {"bucket": str(clone.folder.parent / name)})


def test_a_command_that_only_reads_may_be_typed_anywhere(clone: Clone) -> None:
    """The log of another folder's job, read from a home folder that holds the bucket: nobody works there."""
    found = load("gemini", clone.folder, clone.env, {"bucket": str(clone.folder / "b")}, uses={"bucket", "job"})
    assert found.bucket == str(clone.folder / "b")


def test_of_a_project_it_is_refused_for_every_command(clone: Clone) -> None:
    clone.says('bucket = "file:///proc/self/cwd/.b"')
    with pytest.raises(ConfigError, match="is inside the workspace"):
        load("gemini", clone.folder, clone.env, {}, uses={"bucket", "job"})


def test_what_was_allowed_and_came_into_the_workspace_since_is_refused(clone: Clone) -> None:
    beside = clone.folder.with_name("beside")
    clone.says(f'bucket = "{beside}"')
    Consents(clone.folder, clone.env).allow(wants_of(clone.folder, clone.env))
    assert load("gemini", clone.folder, clone.env, {}).bucket == str(beside)
    beside.symlink_to(clone.folder)
    with pytest.raises(ConfigError, match="is inside the workspace"):
        load("gemini", clone.folder, clone.env, {})


MOUNTED = """\
import os, subprocess, sys
from pathlib import Path
from wal_agent.supervise.settings import find_overlap as overlap
work, other = Path(sys.argv[1]), Path(sys.argv[2])
(work / "sub dir").mkdir()
for source, point in ((work, other / "whole"), (work / "sub dir", other / "part"), (other / "b", other / "in b")):
    point.mkdir(parents=True)
    source.mkdir(exist_ok=True)
    subprocess.run(["mount", "--bind", source, point], check=True)
print(overlap(other / "whole/x", work), overlap(other / "part/x", work), overlap(other / "b", work), sep=",")
print(overlap(other / "b", other / "in b"), overlap(other / "whole", work / "sub dir"), sep=",")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="bind mounts are Linux's")
def test_bind_mounts_hide_nothing(tmp_path: Path) -> None:
    work, other = tmp_path.resolve() / "work", tmp_path.resolve() / "other"
    work.mkdir()
    apart = ["unshare", "--user", "--map-root-user", "--mount"]
    if subprocess.run([*apart, "true"], capture_output=True, check=False).returncode:
        pytest.fail("this machine gives no mounts of one's own: nothing is skipped")
    done = subprocess.run(
        [*apart, sys.executable, "-c", MOUNTED, str(work), str(other)],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert done.stdout.splitlines() == [
        "bucket in workspace,bucket in workspace,None",
        "bucket in workspace,workspace in bucket",
    ], done.stderr


def test_mountinfo_with_blanks_in_its_paths() -> None:
    text = "36 35 98:0 /mnt1/a\\040b /mnt\\0402 rw,noatime - ext3 /dev/root rw\nnot a line\n"
    (mount,) = parse_mounts(text).values()
    assert (mount.device, mount.root, mount.point) == ("98:0", "/mnt1/a b", "/mnt 2")


def test_without_proc_the_folders_themselves_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """macOS."""
    monkeypatch.setattr("wal_agent.supervise.settings.MOUNTS", Path("/nonexistent"))
    work = tmp_path / "w"
    work.mkdir()
    (tmp_path / "l").symlink_to(work)
    assert find_overlap(tmp_path / "l/x/y", work) == "bucket in workspace"
    assert find_overlap(tmp_path, work) == "workspace in bucket"
    assert find_overlap(tmp_path / "b", work) is None
