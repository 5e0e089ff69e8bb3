"""Make a lost repository again: one like it, or a linked worktree of the repository that the workspace has.

HEAD, branches, index, operations in progress, and the commits that the capture holds, shallow where history is missing.
It is built beside its place and moved there at the end, so that a crash leaves none or a whole one. Nothing that the
capture names is run, and only names that git itself uses for these things are written.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path, PurePosixPath

from msgspec.structs import replace

from wal_agent.capture.candidates import is_within
from wal_agent.capture.git import Git, GitDirs, GitFailed
from wal_agent.capture.repository import (
    LINKED,
    PROGRESS_FILES,
    PROGRESS_FOLDERS,
    Location,
    find_location,
    progress_heads,
)
from wal_agent.capture.shadow import Contents, Shadow
from wal_agent.errors import ConfigError, Damaged
from wal_agent.recovery.restore_git import STASH, give_objects, saved_stashes, write_stash
from wal_agent.text import shorten

BUILT = ".wal-agent-git"  # in the workspace, while it is built
_URL = re.compile(
    r"(?:https?|ssh|git|file)://[^\s\x00-\x1f]+|/[^\x00-\x1f]+|[A-Za-z0-9._-]+@[A-Za-z0-9._-]+:[^\s\x00-\x1f]+"
)
_EXEC = re.compile(r"\s*(?:exec|x)\s+(.+)")
_UNMERGED = re.compile(rb"[0-7]{6} [0-9a-f]{40,64} [0-3]\t.+", re.DOTALL)
MAX_SAME_NAME = 100

_WORKTREE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}(?<!\.lock)")


def remove_half_built(folder: Path) -> None:
    """Remove what a crash left half built."""
    left = folder / BUILT
    if left.is_dir() and not left.is_symlink():
        shutil.rmtree(left, ignore_errors=True)
    else:
        left.unlink(missing_ok=True)


def check_git_state(contents: Contents) -> None:
    """Raise Damaged for an impossible index, before anything is changed."""
    if not all(map(_UNMERGED.fullmatch, contents.state.unmerged.split(b"\0")[:-1])):
        raise Damaged("The captured index has an unmerged entry that is none.")


def rebase_commands(contents: Contents) -> tuple[str, ...]:
    """Return what a rebase in progress would run when it goes on: its `exec` lines, as they are."""
    todo = contents.state.files.get("rebase-merge/git-rebase-todo", b"").decode("utf-8", "replace")
    found = (_EXEC.fullmatch(line) for line in todo.splitlines())
    return tuple(line[1] for line in found if line)


def rebuild_git(shadow: Shadow, contents: Contents, folder: Path, identity: Collection[str]) -> None:
    """Make `folder`/.git of `contents`. Under the shadow's lock, once the files are in `folder`. ConfigError."""
    remove_half_built(folder)
    built = folder / BUILT
    try:
        built.mkdir(mode=0o755)
        _build_repository(shadow, contents, built, identity)
        _write_index(shadow.git, contents, built / ".git", folder)
        (built / ".git").rename(folder / ".git")
    except (GitFailed, OSError, ValueError) as error:
        raise ConfigError(f"The repository could not be made again in {folder}: {shorten(str(error))}") from error
    finally:
        remove_half_built(folder)


def link_worktree(shadow: Shadow, contents: Contents, folder: Path, around: Path) -> bool:
    """Make `folder` a linked worktree of the repository of the workspace `around`, as it was one. False: that
    cannot take it, and nothing was made. Under the shadow's lock, once the files are in
    `folder`."""
    main = find_location(shadow.git, around)
    head = contents.state.head
    if main.common is None or main.linked or contents.state.sparse or not head:
        return False
    own = _new_folder(main.common / LINKED, folder.name)
    try:
        (own / "commondir").write_text("../..\n")
        (own / "gitdir").write_text(f"{folder}/.git\n")
        (own / "HEAD").write_text(f"{head}\n")
        at = GitDirs(own, work_tree=folder, cwd=folder)
        if not _has_commit(shadow.git, main, head):
            give_objects(shadow, main, [head])
        if contents.index:
            unmerged = contents.state.unmerged.split(b"\0")[:-1]
            ids = [line.split(b" ")[1].decode() for line in unmerged if not line.startswith(b"160000")]
            give_objects(shadow, main, [contents.index, *ids])
        _write_index(shadow.git, contents, own, folder)
        _write_progress(own, contents)
        _take_branch(shadow.git, main, at, contents.state.branch, head)
        (folder / BUILT).write_text(f"gitdir: {own}\n")
        (folder / BUILT).rename(folder / ".git")
    except (GitFailed, OSError, ValueError):
        remove_half_built(folder)
        shutil.rmtree(own, ignore_errors=True)
        return False
    return True


def _has_commit(git: Git, place: Location, commit: str) -> bool:
    try:
        git.run("cat-file", "-e", f"{commit}^{{commit}}", at=place.at)
    except GitFailed:
        return False
    return True


def _new_folder(linked: Path, name: str) -> Path:
    """Where git keeps what a linked worktree has of its own."""
    linked.mkdir(exist_ok=True)
    base = name if _WORKTREE_NAME.fullmatch(name) else "worktree"
    for n in range(MAX_SAME_NAME):
        with suppress(FileExistsError):
            made = linked / (f"{base}{n}" if n else base)
            made.mkdir()
            return made
    raise ConfigError(f"{linked} has {MAX_SAME_NAME} worktrees called {base}.", "Remove old ones: git worktree prune")


def _take_branch(git: Git, main: Location, at: GitDirs, branch: str, head: str) -> None:
    """Stand on the branch, if it names this commit here or is not there, and no other worktree stands on it. A new one
    takes no short name that means something else here: as `origin/main` it would be merged in that one's place."""
    if not _is_ref(git, branch):
        return
    there, short = (
        git.text("rev-parse", "-q", "--verify", name, at=main.at, ok=(0, 1, 128))
        for name in (branch, branch.removeprefix("refs/heads/"))
    )
    taken = f"branch {branch}" in git.text("worktree", "list", "--porcelain", at=main.at).split("\n")
    if taken or (there != head if there else short):
        return
    git.run("symbolic-ref", "HEAD", branch, at=at)
    if not there:
        git.run("update-ref", branch, head, at=at)


def _write_progress(git_dir: Path, contents: Contents) -> None:
    for name, data in contents.state.files.items():
        if _is_progress_file(name):
            (git_dir / name).parent.mkdir(exist_ok=True)
            (git_dir / name).write_bytes(data)


def _build_repository(shadow: Shadow, contents: Contents, built: Path, identity: Collection[str]) -> None:
    git, state = shadow.git, contents.state
    format = "sha256" if len(contents.commit) == 64 else "sha1"
    chosen = [f"--object-format={format}"] if format != "sha1" else []
    git.run("init", "-q", "--template=", *chosen, ".", cwd=built)
    at = GitDirs(built / ".git", cwd=built)
    (built / ".git" / "info").mkdir(exist_ok=True)
    had = known_commits(shadow, contents)
    _write_objects(shadow, contents, built / ".git", had)
    if cut := [id for id in state.shallow if id in had]:
        (built / ".git" / "shallow").write_text("".join(f"{id}\n" for id in cut))
    for name, id in state.refs.items():
        if id in had and name != STASH and _is_ref(git, name):
            with suppress(GitFailed):  # a/b beside a
                git.run("update-ref", name, id, at=at)
    for id in reversed(saved_stashes(contents)):
        if id in had:
            write_stash(shadow, at, id)
    _write_head(git, at, state.branch, state.head if state.head in had else "")
    _write_progress(built / ".git", contents)
    url = next((text.removeprefix("origin:") for text in identity if text.startswith("origin:")), "")
    if _URL.fullmatch(url):
        git.run("config", "remote.origin.url", url, at=at)
        git.run("config", "remote.origin.fetch", "+refs/heads/*:refs/remotes/origin/*", at=at)


def known_commits(shadow: Shadow, contents: Contents) -> frozenset[str]:
    """Return those of a capture's commits that are here."""
    state = contents.state
    heads = (state.head, *state.refs.values(), *state.stashes, *progress_heads(state.files))
    return _existing_commits(shadow, {*heads, *state.commits} - {""})


def _existing_commits(shadow: Shadow, ids: Collection[str]) -> frozenset[str]:
    """Return those of the commits that are here."""
    asked = "".join(f"{id}\n" for id in sorted(ids)).encode()
    found = shadow.git.run("cat-file", "--batch-check", at=shadow.at(), input=asked).decode()
    return frozenset(line.split()[0] for line in found.splitlines() if line.split()[1:2] == ["commit"])


def _write_objects(shadow: Shadow, contents: Contents, git_dir: Path, had: Collection[str]) -> None:
    """Write one pack of the commits with all their files, and of the index."""
    state = contents.state
    ids = [line.split(b" ")[1].decode() for line in state.unmerged.split(b"\0")[:-1] if not line.startswith(b"160000")]
    wanted = [*(f"--shallow {id}" for id in state.shallow), *sorted(had), *filter(None, [contents.index]), *ids]
    objects = git_dir / "objects"
    (objects / "pack").mkdir(parents=True, exist_ok=True)
    missing = ["--missing=allow-any"] if state.missing else []
    words = ("pack-objects", "-q", "--revs", "--delta-base-offset", *missing, str(objects / "pack" / "pack"))
    # git builds the pack in the object folder that it writes to, and renames it: that one must be the workspace's,
    # which may be another file system than the shadow's.
    at = replace(shadow.at(shadow.objects), objects=objects)
    shadow.git.run(*words, at=at, input="".join(f"{line}\n" for line in wanted).encode())


def _write_head(git: Git, at: GitDirs, branch: str, head: str) -> None:
    if branch and _is_ref(git, branch) and branch.startswith("refs/heads/"):
        git.run("symbolic-ref", "HEAD", branch, at=at)
        if head:
            git.run("update-ref", branch, head, at=at)
    elif head:
        git.run("update-ref", "--no-deref", "HEAD", head, at=at)


def _is_ref(git: Git, name: str) -> bool:
    if not name.startswith("refs/heads/"):
        return False
    try:
        git.run("check-ref-format", name)
    except GitFailed:
        return False
    return True


def _is_progress_file(name: str) -> bool:
    """Whether git keeps an operation in progress in a file of this name."""
    parts = PurePosixPath(name).parts
    if "/".join(parts) != name or not name.isprintable():
        return False
    if len(parts) == 1:
        return name in PROGRESS_FILES
    return len(parts) == 2 and parts[0] in PROGRESS_FOLDERS and parts[1] not in (".", "..")


def _write_index(git: Git, contents: Contents, git_dir: Path, folder: Path) -> None:
    """Write the index as it was; of a sparse checkout, absent files do not count as deleted."""
    at = GitDirs(git_dir, work_tree=folder, cwd=folder)
    state = contents.state
    if contents.index:
        git.run("read-tree", contents.index, at=at)
    if state.unmerged:
        git.run("update-index", "-z", "--index-info", at=at, input=state.unmerged)
    if state.sparse:
        (git_dir / "info" / "sparse-checkout").write_bytes(state.sparse)
        git.run("config", "core.sparseCheckout", "true", at=at)
        gone = git.run("ls-files", "-z", "--deleted", at=at).split(b"\0")[:-1]
        away = [path for path in gone if is_within(path, set(state.left_out))]
        words = ("update-index", "-z", "--skip-worktree", "--stdin")
        git.run(*words, at=at, input=b"".join(path + b"\0" for path in away or gone))
    git.run("update-index", "-q", "--refresh", at=at, ok=(0, 1))
