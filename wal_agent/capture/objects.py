"""Questions about git objects: what differs between two trees, what is reached, how big it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from wal_agent.capture.git import Git, GitDirs


@dataclass(frozen=True, slots=True)
class Change:
    """A path that differs between two trees. Modes are "000000" where there is nothing."""

    old_mode: bytes
    new_mode: bytes
    old: str
    new: str
    path: bytes

    @property
    def old_blob(self) -> bool:
        return self.old_mode[:2] in (b"10", b"12")

    @property
    def new_blob(self) -> bool:
        return self.new_mode[:2] in (b"10", b"12")

    @property
    def new_tree(self) -> bool:
        return self.new_mode == b"040000"


def diff_trees(git: Git, at: GitDirs, old: str, new: str, trees: bool = False) -> Iterator[Change]:
    """`trees`: also the folders in which something differs. What was moved is gone at one path and new at another."""
    if old == new:
        return
    words = ("diff-tree", "-r", *(["-t"] if trees else []), "--raw", "-z", "--no-renames", "--no-abbrev", old, new)
    fields = git.run(*words, at=at).split(b"\0")
    for head, path in zip(fields[::2], fields[1::2], strict=False):
        old_mode, new_mode, old_id, new_id, _ = head[1:].split(b" ")
        yield Change(old_mode, new_mode, old_id.decode(), new_id.decode(), path)


def list_reachable(
    git: Git, at: GitDirs, trees: Sequence[str], known: Sequence[str] = (), strict: bool = True
) -> Iterator[bytes]:
    """Lines of `id path` of what trees reach (`<commit>^{tree}` names one), but for what the trees `known` hold. Not
    `strict`: what is not on this machine is passed over; else GitFailed.

    Never commits: to leave anything out, git goes through the whole history behind them."""
    passed_over = [] if strict else ["--missing=allow-any", "--ignore-missing"]
    asked = "".join(f"{id}\n" for id in (*trees, *(f"^{id}" for id in known)))
    yield from git.run("rev-list", "--objects", *passed_over, "--stdin", at=at, input=asked.encode()).split(b"\n")[:-1]


def trees_of(commits: Sequence[str]) -> list[str]:
    return [f"{id}^{{tree}}" for id in commits]


def object_sizes(git: Git, at: GitDirs, ids: Sequence[str], what: str = "objectsize") -> list[int]:
    """Bytes of each; 0 for what is not there. `what` = objectsize:disk: as it is stored."""
    if not ids:
        return []
    said = git.run("cat-file", f"--batch-check=%({what})", at=at, input="".join(f"{id}\n" for id in ids).encode())
    return [int(line) if line.isdigit() else 0 for line in said.split(b"\n")[:-1]]


def file_sizes(git: Git, at: GitDirs, tree: str) -> Iterator[int]:
    """Bytes of each file of a tree."""
    for entry in git.run("ls-tree", "-r", "-l", "-z", tree, at=at).split(b"\0")[:-1]:
        size = entry.partition(b"\t")[0].rsplit(b" ", 1)[1]
        if size != b"-":
            yield int(size)
