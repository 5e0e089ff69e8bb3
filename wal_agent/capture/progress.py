"""What is in progress in a repository (a merge, a rebase, a bisection), by the files in its git folder that tell it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from wal_agent.capture.shadow import is_object_id
from wal_agent.plainfile import read_plain

MAX_PROGRESS_FILE = 64 << 10  # bytes of one of the files
MAX_PROGRESS_FILES = 300
MAX_PROGRESS_SIZE = 1 << 20  # of all of them
PROGRESS_FILES = (
    *("MERGE_HEAD", "MERGE_MSG", "MERGE_MODE", "MERGE_RR", "AUTO_MERGE", "SQUASH_MSG", "ORIG_HEAD"),
    *("CHERRY_PICK_HEAD", "REVERT_HEAD", "REBASE_HEAD"),
    *("BISECT_LOG", "BISECT_START", "BISECT_NAMES", "BISECT_TERMS", "BISECT_EXPECTED_REV"),
)
PROGRESS_FOLDERS = ("rebase-merge", "rebase-apply", "sequencer")
_BUSY = (
    ("rebase-merge/", "rebase"),
    ("rebase-apply/applying", "am"),
    ("rebase-apply/", "rebase"),
    ("MERGE_HEAD", "merge"),
    ("CHERRY_PICK_HEAD", "cherry-pick"),
    ("REVERT_HEAD", "revert"),
    ("sequencer/", "cherry-pick"),
    ("BISECT_LOG", "bisect"),
)
_HEADS = (
    *("MERGE_HEAD", "CHERRY_PICK_HEAD", "REVERT_HEAD", "REBASE_HEAD"),
    *("rebase-merge/onto", "rebase-merge/orig-head", "rebase-apply/onto", "rebase-apply/orig-head"),
)


def progress_heads(files: Mapping[str, bytes]) -> tuple[str, ...]:
    """The commits that these files name."""
    words = [word for name in _HEADS if name in files for word in files[name].decode("ascii", "replace").split()]
    return tuple(filter(is_object_id, words))


def operation_in_progress(files: Iterable[str]) -> str:
    """What is in progress, in git's word for it; "" for nothing."""
    names = tuple(files)
    return next((word for sign, word in _BUSY if any(n == sign or n.startswith(sign) for n in names)), "")


def read_progress_files(git_dir: Path) -> Iterator[tuple[str, bytes]]:
    """The files that tell of something in progress, as far as the bounds go."""
    size = count = 0
    for name in (*PROGRESS_FILES, *_listed(git_dir, PROGRESS_FOLDERS)):
        data = read_plain(git_dir / name, MAX_PROGRESS_FILE)
        if data is None:
            continue
        size, count = size + len(data), count + 1
        if size > MAX_PROGRESS_SIZE or count > MAX_PROGRESS_FILES:
            return
        yield name, data


def _listed(git_dir: Path, folders: Iterable[str]) -> Iterator[str]:
    for folder in folders:
        with suppress(OSError):
            for entry in sorted(os.listdir(git_dir / folder)):  # noqa: PTH208 - names, not paths
                if entry.isprintable():
                    yield f"{folder}/{entry}"
