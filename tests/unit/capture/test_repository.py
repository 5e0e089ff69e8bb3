"""capture/repository.py: what is read of a user's repository, and its bounds. A script on PATH stands for git."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from wal_agent.capture import repository
from wal_agent.capture.git import Git
from wal_agent.capture.repository import (
    MAX_MARKED_JOBS,
    MAX_MARKS,
    History,
    IndexContents,
    Location,
    RepositoryReader,
    RepositoryState,
    mark_folder,
    operation_in_progress,
    progress_heads,
    read_marks,
    read_progress_files,
    strip_credentials,
    whole_folders,
)
from wal_agent.capture.shadow import GitState, Shadow, read_state

ONE, TWO = "1" * 40, "2" * 40


@pytest.mark.parametrize(
    ("names", "operation"),
    [
        ((), ""),
        (("ORIG_HEAD",), ""),
        (("MERGE_HEAD",), "merge"),
        (("MERGE_HEAD_", "xMERGE_HEAD"), "merge"),  # a name begins as a sign does
        (("CHERRY_PICK_HEAD",), "cherry-pick"),
        (("REVERT_HEAD",), "revert"),
        (("sequencer/todo",), "cherry-pick"),
        (("BISECT_LOG",), "bisect"),
        (("rebase-merge/onto",), "rebase"),
        (("rebase-apply/onto",), "rebase"),
        (("rebase-apply/applying",), "am"),
        (("MERGE_HEAD", "rebase-merge/onto"), "rebase"),
    ],
)
def test_what_is_in_progress_has_gits_word(names: tuple[str, ...], operation: str) -> None:
    assert operation_in_progress(names) == operation


def test_heads_of_an_operation_are_object_ids_and_nothing_else() -> None:
    files = {"MERGE_HEAD": f"{ONE}\n{TWO}\n".encode(), "REVERT_HEAD": b"\xff --all", "MERGE_MSG": ONE.encode()}
    assert progress_heads(files) == (ONE, TWO)
    assert progress_heads({"rebase-merge/onto": ONE.encode(), "rebase-merge/x": TWO.encode()}) == (ONE,)


def test_files_of_an_operation_are_read_as_far_as_the_bounds_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MERGE_HEAD", "MERGE_MSG", "sequencer/todo", "sequencer/bad\x07"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"12345")
    whole = [("MERGE_HEAD", b"12345"), ("MERGE_MSG", b"12345"), ("sequencer/todo", b"12345")]
    assert [*read_progress_files(tmp_path)] == whole
    for bound, fits in (("MAX_PROGRESS_FILES", 3), ("MAX_PROGRESS_SIZE", 15)):
        with monkeypatch.context() as patch:
            patch.setattr(repository, bound, fits)
            assert [*read_progress_files(tmp_path)] == whole
            patch.setattr(repository, bound, fits - 1)
            assert [*read_progress_files(tmp_path)] == whole[:2]
    monkeypatch.setattr(repository, "MAX_PROGRESS_FILE", 4)
    assert [*read_progress_files(tmp_path)] == []


def test_an_index_is_copied_when_it_is_another_one_and_never_when_it_is_too_big(tmp_path: Path) -> None:
    source, target = tmp_path / "index", tmp_path / "copy"
    source.write_bytes(b"123")
    first = repository._copy_index(source, target, 3)
    assert first is not None and target.read_bytes() == b"123"
    times = source.stat()
    target.write_bytes(b"abc")
    os.utime(target, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert repository._copy_index(source, target, 3) == first and target.read_bytes() == b"abc", (
        "known by size and time"
    )
    os.utime(source, ns=(times.st_atime_ns, times.st_mtime_ns + 1))
    assert repository._copy_index(source, target, 3) not in (None, first) and target.read_bytes() == b"123"
    assert target.stat().st_mtime_ns == times.st_mtime_ns + 1
    assert repository._copy_index(source, target, 2) is None and not target.exists()
    target.write_bytes(b"old")
    source.unlink()
    assert repository._copy_index(source, target, 3) is None and not target.exists()


@pytest.fixture
def place(tmp_path: Path) -> Location:
    (tmp_path / ".git").mkdir()
    return Location(tmp_path, git_dir=tmp_path / ".git", common=tmp_path / ".git")


def history(tmp_path: Path, script: str) -> History:
    """With a git that writes its words down, one line for each, and does as the script says."""
    program = tmp_path / "bin" / "git"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$*" >>{tmp_path}/asked\n{script}\n')
    program.chmod(0o755)
    (tmp_path / "shadow").mkdir()
    return History(Shadow(tmp_path / "shadow", Git({"PATH": f"{program.parent}:{os.environ['PATH']}"})))


WEIGHED = """case "$*" in
*--objects*) grep -q ^1 && { echo "aa x"; echo "bb y"; }; exit 0;;
*--batch-check*) echo 30; echo 12;;
*) echo "%s %s";;
esac"""


def test_what_was_weighed_once_is_not_weighed_again(
    tmp_path: Path, place: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = history(tmp_path, WEIGHED % (ONE, TWO))
    monkeypatch.setattr(repository, "MAX_HISTORY", 42)
    assert made.commits(place, ONE, (), (TWO,)) == ((ONE,), (ONE,), False, False)
    assert made.commits(place, ONE, (), (TWO,)) == ((ONE,), (ONE,), False, False)
    assert (list(made._weighed), made.weight) == ([ONE], 42)
    monkeypatch.setattr(repository, "MAX_HISTORY", 41)
    assert made._affordable(place, {ONE: (TWO,)}) == {}, "too much in all"


def test_a_job_without_commits_asks_nothing(tmp_path: Path, place: Location) -> None:
    made = history(tmp_path, "exit 1")
    assert made.commits(place, "", (), ()) == ((), (), False, False)
    assert not (tmp_path / "asked").exists()


def test_the_first_commit_is_searched_once_and_not_in_a_shallow_clone(tmp_path: Path, place: Location) -> None:
    made = history(tmp_path, f'case "$*" in *config*) exit 1;; *) echo {TWO}; echo {ONE};; esac')
    assert made.who(place, "") == ()
    assert made.who(place, ONE) == (f"root:{ONE}",)
    assert History(made._shadow).who(place, ONE) == (f"root:{ONE}",)
    assert (tmp_path / "asked").read_text().count("--max-parents=0") == 1
    (tmp_path / ".git" / "shallow").write_text(ONE)
    assert History(made._shadow).who(place, ONE) == ()


# ---- marks


@pytest.fixture
def attributes(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """The extended attributes of every folder, on a file system that has them."""
    kept: dict[str, bytes] = {}

    def put(_: object, name: str, value: bytes, *, follow_symlinks: bool) -> None:
        assert not follow_symlinks
        kept[name] = value

    def get(_: object, name: str, *, follow_symlinks: bool) -> bytes:
        assert not follow_symlinks
        if name not in kept:
            raise OSError(errno.ENODATA, "no data")
        return kept[name]

    monkeypatch.setattr(os, "setxattr", put, raising=False)
    monkeypatch.setattr(os, "getxattr", get, raising=False)
    return kept


def test_a_folder_is_marked_by_each_job_and_the_newest_job_comes_first(
    attributes: dict[str, bytes], tmp_path: Path
) -> None:
    assert read_marks(tmp_path) == read_marks(tmp_path, "a") == ()
    mark_folder(tmp_path, [ONE], "a")
    assert [*attributes.values()] == [f"ca978112={ONE}".encode()], "as other versions look for it"
    mark_folder(tmp_path, [TWO, ONE], "b")
    assert read_marks(tmp_path) == (TWO, ONE, ONE)
    assert (read_marks(tmp_path, "a"), read_marks(tmp_path, "b"), read_marks(tmp_path, "c")) == ((ONE,), (TWO, ONE), ())
    mark_folder(tmp_path, [TWO], "a")
    assert read_marks(tmp_path) == (TWO, TWO, ONE)
    mark_folder(tmp_path, [], "a")
    assert read_marks(tmp_path) == (), "it is no capture of any job's"


def test_marks_are_bounded_also_where_another_program_wrote_them(attributes: dict[str, bytes], tmp_path: Path) -> None:
    many = [f"{n:040d}" for n in range(MAX_MARKS + 2)]
    for n in range(MAX_MARKED_JOBS + 1):
        mark_folder(tmp_path, many, str(n))
    assert read_marks(tmp_path, "0") == () and read_marks(tmp_path, "1") == tuple(many[:MAX_MARKS])
    assert len(read_marks(tmp_path)) == MAX_MARKED_JOBS * MAX_MARKS
    (name,) = attributes
    attributes[name] = b" ".join(b"k%d=%s" % (n, b",".join([b"x"] * 99)) for n in range(99)) + b"\xff"
    assert len(read_marks(tmp_path)) == MAX_MARKED_JOBS * MAX_MARKS
    attributes[name] = b"nothing = also= k=v"
    assert read_marks(tmp_path) == ("v",)


@pytest.mark.parametrize("error", [OSError(errno.ENOTSUP, "not supported"), AttributeError("macOS")])
def test_where_there_are_no_attributes_nothing_is_marked(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(os, "setxattr", fail, raising=False)
    monkeypatch.setattr(os, "getxattr", fail, raising=False)
    mark_folder(tmp_path, [ONE], "a")
    assert read_marks(tmp_path) == ()


# ---- history


def listing(*commits: str) -> str:
    """Git that knows these commits, the first argument the newest, whatever it is asked for."""
    lines = "; ".join(f"echo {line}" for line in commits) or ":"
    return f'case "$*" in *--objects*|*--batch-check*) exit 0;; *--max-count=1*) echo {ONE} {TWO};; *) {lines};; esac'


def test_a_head_that_a_remote_has_comes_alone_and_is_cut_from_its_parents(tmp_path: Path, place: Location) -> None:
    made = history(tmp_path, listing())
    assert made.commits(place, ONE, (), (TWO,)) == ((ONE,), (ONE,), True, False)
    assert made.commits(place, ONE, (), ()) == ((ONE,), (ONE,), False, False), "without a remote none has it"


def test_commits_whose_parents_come_too_are_whole(tmp_path: Path, place: Location) -> None:
    made = history(tmp_path, listing(f"{ONE} {TWO}", TWO))
    assert made.commits(place, ONE, (), ()) == ((ONE, TWO), (), False, False)
    (tmp_path / ".git" / "shallow").write_text(TWO)
    assert made.commits(place, ONE, (), ()) == ((ONE, TWO), (TWO,), False, False), "the clone is cut there itself"


def test_so_many_commits_come_and_the_heads_own_first(
    tmp_path: Path, place: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    three = "3" * 40
    script = f'case "$(cat)" in {ONE}*) echo {ONE} {TWO};; {three}*) echo {three};; esac'
    made = history(tmp_path, f'case "$*" in *--objects*|*--batch-check*) exit 0;; esac\n{script}')
    assert made.commits(place, ONE, (three, ONE), ())[0] == (ONE, three)
    monkeypatch.setattr(repository, "MAX_COMMITS", 1)
    assert made.commits(place, ONE, (three,), ()) == ((ONE,), (ONE,), False, True), "and that there are more is known"
    assert made.commits(place, "", (three,), ())[0] == (three,), "an unborn branch beside others"


def test_a_history_that_git_cannot_read_hides_what_is_behind_it(tmp_path: Path, place: Location) -> None:
    made = history(tmp_path, "exit 1")
    assert made.commits(place, ONE, (), ()) == ((ONE,), (), False, False)


@pytest.mark.parametrize(
    ("url", "kept"),
    [
        ("https://me:secret@host:8443/a/b.git?token=x#y", "https://host:8443/a/b.git"),
        ("ssh://git@host/a", "ssh://host/a"),
        ("git@host:a/b.git", "git@host:a/b.git"),
        ("/srv/a", "/srv/a"),
        ("https://[broken/a", ""),
        ("https://a@b@host/x", "https://host/x"),
    ],
)
def test_an_origin_keeps_no_secret(url: str, kept: str) -> None:
    assert strip_credentials(url) == kept


def test_who_a_project_is_has_its_origin_first_and_is_asked_again_when_that_changes(
    tmp_path: Path, place: Location
) -> None:
    url = tmp_path / "url"
    made = history(tmp_path, f'case "$*" in *config*) cat {url} 2>/dev/null || exit 1;; *) echo {ONE};; esac')
    assert made.who(place, ONE) == (f"root:{ONE}",)
    url.write_text("https://me:pw@host/a")
    assert made.who(place, ONE) == (f"root:{ONE}",), "git is asked again when its settings are others"
    (tmp_path / ".git" / "config").write_text("[remote]")
    assert made.who(place, ONE) == ("origin:https://host/a", f"root:{ONE}")
    assert made.who(place, "") == ("origin:https://host/a",)


def test_a_kept_first_commit_of_another_repository_or_that_is_none_is_not_believed(
    tmp_path: Path, place: Location
) -> None:
    made = history(tmp_path, f'case "$*" in *config*) exit 1;; *) echo {ONE};; esac')
    kept = tmp_path / "shadow" / "roots"
    for text in (f"{TWO} /elsewhere", f"junk {tmp_path}/.git", ""):
        kept.write_text(text)
        assert History(made._shadow).who(place, ONE) == (f"root:{ONE}",)
        assert kept.read_text() == f"{ONE} {tmp_path}/.git"


# ---- refs, index, state


def reader(tmp_path: Path, script: str) -> RepositoryReader:
    return RepositoryReader(history(tmp_path, script)._shadow)


REFS = f"""case "$*" in
*for-each-ref*)
  echo "{ONE}   refs/heads/a"; echo "{TWO} * refs/heads/b"
  echo "{ONE}   refs/remotes/o/x"; echo "{ONE}   refs/remotes/o/y"; echo "{TWO}   refs/stash";;
*) exit 1;;
esac"""


def test_refs_are_told_apart(tmp_path: Path, place: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    made = reader(tmp_path, REFS)
    refs = {"refs/heads/a": ONE, "refs/heads/b": TWO, "refs/stash": TWO}
    assert made._refs(place) == (refs, (ONE,), TWO, "refs/heads/b")
    monkeypatch.setattr(repository, "MAX_REFS", 2)
    assert made._refs(place)[:2] == (dict(list(refs.items())[:2]), (ONE,)), "remotes are no refs of the user's"


@pytest.mark.parametrize(
    ("symbolic", "head", "expected"),
    [("", ONE, (ONE, "")), ("refs/heads/new", "", ("", "refs/heads/new")), ("", "HEAD", ("", ""))],
)
def test_a_head_on_no_branch_that_is_born(
    tmp_path: Path, place: Location, symbolic: str, head: str, expected: tuple[str, str]
) -> None:
    said = f'*symbolic-ref*) test -n "{symbolic}" && echo {symbolic};; *rev-parse*) echo {head};;'
    made = reader(tmp_path, f'case "$*" in *for-each-ref*) ;; {said} esac')
    assert made._refs(place) == ({}, (), *expected)


def test_stages_are_objects_but_for_repositories_inside() -> None:
    unmerged = b"".join(
        f"{mode} {id} {stage}\tpath".encode() + b"\0"
        for mode, id, stage in (("100644", ONE, 1), ("160000", "3" * 40, 2), ("120000", TWO, 3))
    )
    assert [*repository._stages(unmerged)] == [ONE, TWO] and [*repository._stages(b"")] == []


def test_without_its_history_a_state_keeps_head_and_what_is_in_progress() -> None:
    state = GitState(head=ONE, files={"MERGE_HEAD": b"x"}, commits=(ONE,), shallow=(ONE,), unmerged=b"u", branch="b")
    heavy = RepositoryState(None, "index", msgspec.json.encode(state), (TWO,), 99)
    light = heavy.without_history()
    assert (light.index, light.extra, light.weight) == ("", (), 99)
    assert read_state(light.state) == GitState(head=ONE, files={"MERGE_HEAD": b"x"}, branch="b")


def test_a_split_index_is_copied_with_what_it_stands_on_within_a_bound(
    tmp_path: Path, place: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repository, "MAX_SHARED", 2)
    git_dir = tmp_path / ".git"
    for name in ("index", *(f"sharedindex.{n}" for n in range(4))):
        (git_dir / name).write_text(name)
    made = reader(tmp_path, 'case "$*" in *write-tree*) echo tree;; esac')._index
    (made._shadow.folder / "tmp").mkdir()
    (made._shadow.folder / "sharedindex.old").write_text("of an index of before")
    assert made.stamp is None and made.read(place) == IndexContents("tree", b"")
    assert len([*made._shadow.folder.glob("sharedindex.*")]) == 2
    assert not (made._shadow.folder / "sharedindex.old").exists()
    stamp = made.stamp
    assert made.read(place) == IndexContents("tree", b"") and made.stamp == stamp
    assert (tmp_path / "asked").read_text().count("write-tree") == 1, "the same index is not read again"
    (git_dir / "index").write_text("another one")
    assert made.read(place) == IndexContents("tree", b"") and made.stamp != stamp
    made.forget()
    assert made.stamp is None
    (git_dir / "index").unlink()
    assert made.read(place) == IndexContents("", b"")


@pytest.mark.parametrize("format", ["sha1", "sha256"])
def test_what_is_unmerged_leaves_the_tree_of_the_index_and_is_kept_beside_it(
    tmp_path: Path, place: Location, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = replace(place, object_format=format)
    (tmp_path / ".git" / "index").write_text("x")
    entry = f"100644 {ONE} 2\\tpath"
    said = f"*\"ls-files -u\"*) printf '{entry}\\000{entry}\\000';; *--index-info*) cat >{tmp_path}/gone;;"
    made = reader(tmp_path, f'case "$*" in {said} *write-tree*) echo tree;; esac')._index
    (made._shadow.folder / "tmp").mkdir()
    unmerged = f"100644 {ONE} 2\tpath\0".encode() * 2
    assert made.read(place) == IndexContents("tree", unmerged)
    assert (tmp_path / "gone").read_bytes() == b"0 " + b"0" * (40 if format == "sha1" else 64) + b"\tpath\0"
    for most, kept in ((len(unmerged), unmerged), (len(unmerged) - 1, b"")):
        made.forget()
        monkeypatch.setattr(repository, "MAX_UNMERGED", most)
        assert made.read(place) == IndexContents("tree", kept)


def test_outside_of_git_nothing_is_read(tmp_path: Path) -> None:
    made = reader(tmp_path, "exit 1")
    assert made.read(Location(tmp_path)) == RepositoryState() and made.index_stamp is None
    assert Location(tmp_path).alternates == ()
    assert Location(tmp_path, common=tmp_path).alternates == (tmp_path / "objects",)


def test_what_is_weighed_is_what_the_newest_weighed_commit_lacks_also_where_files_are_missing(
    tmp_path: Path, place: Location
) -> None:
    """In a partial clone some of them are not on this machine."""
    made = history(
        tmp_path,
        f"""case "$*" in
*--objects*) cat >>{tmp_path}/listed; echo "aa a path"; echo "bb";;
*--batch-check*) cat >>{tmp_path}/sized; echo 30; echo 12;;
esac""",
    )
    one, two, three = ONE, TWO, "3" * 40
    for chosen in ((one, two), (one, two, three), (three,)):
        assert list(made._affordable(place, dict.fromkeys(chosen, ()))) == [*chosen]
        assert list(made._weighed) == [*chosen], "what is not asked for any more is forgotten"
    asked = (tmp_path / "listed").read_text().split("\n")[:-1]
    tree = "^{tree}"
    assert asked == [one + tree, two + tree, f"^{one}{tree}", three + tree, f"^{two}{tree}"]
    assert (tmp_path / "sized").read_text().split()[:4] == ["aa", "bb", "aa", "bb"]
    lists = [line for line in (tmp_path / "asked").read_text().splitlines() if "--objects" in line]
    assert lists and all("--missing=allow-any" in line for line in lists)


def test_where_a_clone_is_cut_is_read_up_to_a_bound(
    tmp_path: Path, place: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = history(tmp_path, listing(f"{ONE} {TWO}", TWO))
    (tmp_path / ".git" / "shallow").write_text(TWO)
    for most, cut in ((40, (TWO,)), (39, ())):
        monkeypatch.setattr(repository, "MAX_SHALLOW", most)
        assert made.commits(place, ONE, (), ())[1] == cut


def test_a_head_that_git_cannot_read_is_none(tmp_path: Path, place: Location) -> None:
    made = reader(tmp_path, 'case "$*" in *for-each-ref*) ;; *) exit 128;; esac')
    assert made._refs(place) == ({}, (), "", "")


def test_a_stage_of_a_path_with_spaces_is_one() -> None:
    assert [*repository._stages(f"100644 {ONE} 1\ta b c\0".encode())] == [ONE]


def test_an_index_that_is_not_there_leaves_no_copy(tmp_path: Path) -> None:
    assert repository._copy_index(tmp_path / "index", tmp_path / "copy", 3) is None
    (tmp_path / "index").write_bytes(b"1234")
    assert repository._copy_index(tmp_path / "index", tmp_path / "copy", 3) is None
    assert not (tmp_path / "copy").exists()


def test_folders_stand_for_all_that_is_in_them() -> None:
    away = [b"a", b"b/c", b"b/d", b"e/f", b"e/g/h", b"i/j/k", b"i/j/l"]
    assert whole_folders(away, [b"e/z", b"i/x"]) == (b"a", b"b", b"e/f", b"e/g", b"i/j")
    assert whole_folders([], [b"a"]) == ()
