"""Makes a repository like the one that was lost, where a folder has none: HEAD, branches, index, what was in progress,
and the commits that the capture holds; where history is not had, the repository is shallow.

It is built beside its place and moved there at the end, so that a crash leaves none or a whole one. Nothing that the
capture names is run, and only names that git itself uses for these things are written.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path, PurePosixPath

from wal_agent.capture.git import Git, GitDirs, GitFailed
from wal_agent.capture.repository import PROGRESS_FILES, PROGRESS_FOLDERS
from wal_agent.capture.shadow import Contents, Shadow
from wal_agent.errors import ConfigError, Damaged
from wal_agent.sanitize import shorten

BUILT = ".wal-agent-git"  # in the workspace, while it is built
_URL = re.compile(
    r"(?:https?|ssh|git|file)://[^\s\x00-\x1f]+|/[^\x00-\x1f]+|[A-Za-z0-9._-]+@[A-Za-z0-9._-]+:[^\s\x00-\x1f]+"
)
_EXEC = re.compile(r"\s*(?:exec|x)\s+(.+)")
_UNMERGED = re.compile(rb"[0-7]{6} [0-9a-f]{40,64} [0-3]\t.+", re.DOTALL)


def remove_half_built(folder: Path) -> None:
    """Remove what a crash left half built."""
    left = folder / BUILT
    if left.is_dir() and not left.is_symlink():
        shutil.rmtree(left, ignore_errors=True)


def check_git_state(contents: Contents) -> None:
    """Damaged for what stands around no repository. Before anything is changed."""
    if not all(map(_UNMERGED.fullmatch, contents.state.unmerged.split(b"\0")[:-1])):
        raise Damaged("The captured index has an unmerged entry that is none.")


def rebase_commands(contents: Contents) -> tuple[str, ...]:
    """What a rebase in progress would run when it goes on: its `exec` lines, as they are."""
    todo = contents.state.files.get("rebase-merge/git-rebase-todo", b"").decode("utf-8", "replace")
    found = (_EXEC.fullmatch(line) for line in todo.splitlines())
    return tuple(line[1] for line in found if line)


def rebuild_git(shadow: Shadow, contents: Contents, folder: Path, identity: Collection[str]) -> None:
    """Make `folder`/.git of what `contents` holds. Under the shadow's lock; the files in `folder` stand already.
    ConfigError where it cannot be made."""
    remove_half_built(folder)
    built = folder / BUILT
    try:
        built.mkdir(mode=0o755)
        _build_repository(shadow, contents, built, identity)
        _write_index(shadow.git, contents, built, folder)
        (built / ".git").rename(folder / ".git")
    except (GitFailed, OSError, ValueError) as error:
        raise ConfigError(f"The repository could not be made again in {folder}: {shorten(str(error))}") from error
    finally:
        remove_half_built(folder)


def _build_repository(shadow: Shadow, contents: Contents, built: Path, identity: Collection[str]) -> None:
    git, state = shadow.git, contents.state
    format = "sha256" if len(contents.commit) == 64 else "sha1"
    chosen = [f"--object-format={format}"] if format != "sha1" else []
    git.run("init", "-q", "--template=", *chosen, ".", cwd=built)
    at = GitDirs(built / ".git", cwd=built)
    (built / ".git" / "info").mkdir(exist_ok=True)
    had = _existing_commits(shadow, {state.head, *state.refs.values(), *state.commits} - {""})
    _write_objects(shadow, contents, built / ".git", had)
    if cut := [id for id in state.shallow if id in had]:
        (built / ".git" / "shallow").write_text("".join(f"{id}\n" for id in cut))
    for name, id in state.refs.items():
        if id in had and _is_ref(git, name):
            with suppress(GitFailed):  # a/b beside a
                git.run("update-ref", *_reflog_options(git, at, name, id), name, id, at=at)
    _write_head(git, at, state.branch, state.head if state.head in had else "")
    for name, data in state.files.items():
        if _is_progress_file(name):
            (built / ".git" / name).parent.mkdir(exist_ok=True)
            (built / ".git" / name).write_bytes(data)
    url = next((text.removeprefix("origin:") for text in identity if text.startswith("origin:")), "")
    if _URL.fullmatch(url):
        git.run("config", "remote.origin.url", url, at=at)
        git.run("config", "remote.origin.fetch", "+refs/heads/*:refs/remotes/origin/*", at=at)


def _reflog_options(git: Git, at: GitDirs, name: str, id: str) -> list[str]:
    """A stash is listed only out of its log. Older ones than the newest are not captured."""
    if name != "refs/stash":
        return []
    return ["--create-reflog", "-m", git.text("log", "-1", "--format=%s", id, at=at)[:200] or "WIP"]


def _existing_commits(shadow: Shadow, ids: Collection[str]) -> frozenset[str]:
    """Those of the commits that are here."""
    asked = "".join(f"{id}\n" for id in sorted(ids)).encode()
    said = shadow.git.run("cat-file", "--batch-check", at=shadow.at(), input=asked).decode()
    return frozenset(line.split()[0] for line in said.splitlines() if line.split()[1:2] == ["commit"])


def _write_objects(shadow: Shadow, contents: Contents, git_dir: Path, had: Collection[str]) -> None:
    """One pack of the commits with all their files, and of the index."""
    state = contents.state
    ids = [line.split(b" ")[1].decode() for line in state.unmerged.split(b"\0")[:-1] if not line.startswith(b"160000")]
    wanted = [*(f"--shallow {id}" for id in state.shallow), *sorted(had), *filter(None, [contents.index]), *ids]
    target = git_dir / "objects" / "pack"
    target.mkdir(parents=True, exist_ok=True)
    missing = ["--missing=allow-any"] if state.missing else []
    words = ("pack-objects", "-q", "--revs", "--delta-base-offset", *missing, str(target / "pack"))
    shadow.git.run(*words, at=shadow.at(), input="".join(f"{line}\n" for line in wanted).encode())


def _write_head(git: Git, at: GitDirs, branch: str, head: str) -> None:
    if branch and _is_ref(git, branch) and branch.startswith("refs/heads/"):
        git.run("symbolic-ref", "HEAD", branch, at=at)
        if head:
            git.run("update-ref", branch, head, at=at)
    elif head:
        git.run("update-ref", "--no-deref", "HEAD", head, at=at)


def _is_ref(git: Git, name: str) -> bool:
    if not (name.startswith("refs/heads/") or name == "refs/stash"):
        return False
    try:
        git.run("check-ref-format", name)
    except GitFailed:
        return False
    return True


def _is_progress_file(name: str) -> bool:
    """Whether it is a file that git keeps what is in progress in."""
    parts = PurePosixPath(name).parts
    if "/".join(parts) != name or not name.isprintable():
        return False
    return (
        name in PROGRESS_FILES
        if len(parts) == 1
        else len(parts) == 2 and parts[0] in PROGRESS_FOLDERS and parts[1] not in (".", "..")
    )


def _write_index(git: Git, contents: Contents, built: Path, folder: Path) -> None:
    """The index as it was; where only part of the files was checked out, what is not here is not missed."""
    at = GitDirs(built / ".git", work_tree=folder, cwd=folder)
    state = contents.state
    if contents.index:
        git.run("read-tree", contents.index, at=at)
    if state.unmerged:
        git.run("update-index", "-z", "--index-info", at=at, input=state.unmerged)
    if state.sparse:
        (built / ".git" / "info" / "sparse-checkout").write_bytes(state.sparse)
        git.run("config", "core.sparseCheckout", "true", at=at)
        away = git.run("ls-files", "-z", "--deleted", at=at)
        git.run("update-index", "-z", "--skip-worktree", "--stdin", at=at, input=away)
    git.run("update-index", "-q", "--refresh", at=at, ok=(0, 1))
