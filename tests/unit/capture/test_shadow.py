"""capture/shadow.py: our own repository, and the trees that it takes in and gives back."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.tiers import examples
from tests.unit.capture.trees import Elsewhere, Log, User, capture_of, fingerprint, on_disk, user_env
from wal_agent.capture.git import Git, GitBounds, GitDirs, GitFailed, GitMissing, GitStopped
from wal_agent.capture.shadow import BASE, SAVED, GitState, Shadow, is_object_id, read_state
from wal_agent.errors import Damaged

EMPTY = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"  # git's id of the tree without entries


def shadow_in(folder: Path) -> Shadow:
    shadow = Shadow.of(folder / "state", folder / "work", Git(user_env(folder)))
    shadow.ensure()
    return shadow


def test_it_is_a_private_folder_named_by_the_real_path(tmp_path: Path) -> None:
    one, other = (Shadow.of(tmp_path, tmp_path / name, Git({})) for name in ("a", "b"))
    assert one.folder.parent == other.folder.parent == tmp_path / "workspaces"
    assert one.folder != other.folder
    mask = os.umask(0)
    try:
        made = Shadow.of(tmp_path / "state" / "deep", tmp_path / "work", Git(user_env(tmp_path)))
        with made.locked():
            made.ensure()
    finally:
        os.umask(mask)
    for path in (made.folder.parent, made.folder, made.tmp):
        assert path.stat().st_mode & 0o777 == 0o700, path


def test_another_version_finds_the_repository_and_the_refs_of_a_job_by_the_same_names() -> None:
    """Else all is sent again after an update."""
    shadow = Shadow.of(Path("/state"), Path("/home/me/shop"), Git({}), "gemini-shop")
    assert str(shadow.folder) == "/state/workspaces/4a68c726aa051718"
    assert shadow.name(SAVED) == "refs/wal-agent/16299d0f379b1278/saved"


def test_a_capture_is_read_as_it_was_written(tmp_path: Path) -> None:
    shadow = shadow_in(tmp_path)
    empty = shadow.git.run("mktree", at=shadow.at(), input=b"").decode().strip()
    state = GitState(head="a" * 40, branch="refs/heads/x", files={"MERGE_MSG": b"\xff\n"}, unmerged=b"\0")
    made = shadow.commit(empty, empty, msgspec.json.encode(state), 5.0)
    assert shadow.contents(made.commit) == replace(made, tree="") and made.tree == shadow.git.text(
        "rev-parse", f"{made.commit}^{{tree}}", at=shadow.at()
    )
    assert (made.work, made.index, made.state) == (EMPTY, EMPTY, state)
    plain = shadow.commit(empty, "", b"", 5.0)
    assert shadow.contents(plain.commit) == replace(plain, tree="")
    assert (plain.index, plain.state_id, plain.state) == ("", "", GitState())


def test_what_is_no_capture_is_damaged(tmp_path: Path) -> None:
    shadow = shadow_in(tmp_path)
    at = shadow.at()
    empty = shadow.git.run("mktree", at=at, input=b"").decode().strip()
    blob = shadow.git.run("hash-object", "-w", "--stdin", at=at, input=b'{"head": "no id"}').decode().strip()
    trees = {
        "nothing": "",
        "no work": f"040000 tree {empty}\tindex",
        "more": f"040000 tree {empty}\twork\n040000 tree {empty}\tx",
        "work is a file": f"100644 blob {blob}\twork",
        "a state that is none": f"040000 tree {empty}\twork\n100644 blob {blob}\tstate",
    }
    for name, entries in trees.items():
        tree = shadow.git.run("mktree", at=at, input=entries.encode()).decode().strip()
        with pytest.raises(Damaged):
            shadow.contents(tree)
        assert name
    with pytest.raises(Damaged):
        shadow.contents("1" * 40)


@pytest.mark.parametrize("text", [b"", b"[]", b"{", b'{"refs": {"a": "../x"}}', b'{"commits": ["-x"]}', b'{"head": 1}'])
def test_a_state_that_is_none_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError):
        read_state(text)


def test_what_was_saved_is_remembered_and_only_one_works_in_it(tmp_path: Path) -> None:
    shadow = shadow_in(tmp_path)
    with shadow.locked() as mine, shadow.locked() as again:
        assert (mine, again) == (True, False)
        empty = shadow.git.run("mktree", at=shadow.at(), input=b"").decode().strip()
        one, two = (shadow.commit(empty, "", b"", now).commit for now in (1.0, 2.0))
        saved, base = shadow.name(SAVED), shadow.name(BASE)
        assert shadow.ref(saved) == ""
        shadow.keep(one, one, (one,))
        assert (shadow.ref(saved), shadow.ref(base)) == (one, one)
        shadow.save(two)
        assert (shadow.ref(saved), shadow.ref(base)) == (two, "")
        shadow.save(one)
        assert (shadow.ref(saved), shadow.ref(base)) == (one, "")


def commits(shadow: Shadow, count: int) -> list[str]:
    """Captures of trees with a file each of 100 bytes that compress to nothing less."""
    made = []
    for n in range(count):
        data = hashlib.sha512(b"%d" % n).hexdigest().encode()
        blob = shadow.git.run("hash-object", "-w", "--stdin", at=shadow.at(), input=data).decode().strip()
        tree = shadow.git.run("mktree", at=shadow.at(), input=f"100644 blob {blob}\tx\n".encode()).decode().strip()
        made.append(shadow.commit(tree, "", b"", float(n)).commit)
    return made


def test_the_captures_that_the_log_may_hold_are_kept_and_no_others(tmp_path: Path) -> None:
    shadow = shadow_in(tmp_path)
    one, two, three = commits(shadow, 3)
    other = Shadow(shadow.folder, shadow.git, "another job")
    other.hold(three)
    for commit in (one, two):
        shadow.hold(commit)
    shadow.keep(two, "", (one, two))
    assert shadow.ref(shadow.name(SAVED)) == two and shadow.ref(shadow.name(BASE)) == ""
    assert [shadow.has(commit) for commit in (one, two, three)] == [True, True, True]
    shadow.keep(two, one, (two,))
    assert shadow.ref(shadow.name(BASE)) == one
    shadow.keep(two, "", (two,))
    assert [shadow.has(commit) for commit in (one, two, three)] == [False, True, True], "another job's stay"
    shadow.save(one)
    assert [shadow.has(commit) for commit in (one, two, three)] == [True, False, False], "the folder is that one now"
    assert not shadow.has("1" * 40)


def objects(shadow: Shadow) -> tuple[int, int]:
    """Loose ones, and packs."""
    return len([*shadow.objects.glob("??/*")]), len([*shadow.objects.glob("pack/*.pack")])


def packed(shadow: Shadow, *commits: str) -> Path:
    words = ("pack-objects", "-q", "--stdout", "--revs")
    path = shadow.tmp / "made"
    path.write_bytes(shadow.git.run(*words, at=shadow.at(), input="".join(f"{c}\n" for c in commits).encode()))
    return path


@pytest.mark.parametrize("given", [True, False])
def test_what_no_capture_needs_goes_and_one_pack_is_left(tmp_path: Path, given: bool) -> None:
    shadow = shadow_in(tmp_path)
    old, new, unsaved = commits(shadow, 3)
    shadow.keep(old, "", (old,))
    shadow.take_in(packed(shadow, old))
    assert objects(shadow) == (8, 1), "what is in the pack is loose no more"
    shadow.keep(new, "", (new,))
    shadow.tidy(packed(shadow, new) if given else None)
    assert objects(shadow) == (0, 1)
    assert shadow.contents(new).commit == new
    for gone in (old, unsaved):
        with pytest.raises(Damaged):
            shadow.contents(gone)
    assert {path.suffix for path in (shadow.objects / "pack").iterdir()} <= {".pack", ".idx", ".rev"}


def test_where_nothing_was_packed_only_what_is_loose_is_cleared(tmp_path: Path) -> None:
    shadow = shadow_in(tmp_path)
    one, unsaved = commits(shadow, 2)
    shadow.keep(one, "", (one,))
    shadow.tidy(None)
    assert objects(shadow) == (4, 0) and shadow.contents(one).commit == one
    with pytest.raises(Damaged):
        shadow.contents(unsaved)


@pytest.mark.parametrize(
    ("text", "is_one"),
    [("a" * 40, True), ("0" * 64, True), ("a" * 39, False), ("a" * 41, False), ("g" * 40, False), ("A" * 40, False)],
)
def test_an_objects_id_is_hexadecimal_and_of_one_of_two_lengths(text: str, is_one: bool) -> None:
    assert is_object_id(text) is is_one


def test_the_lock_outlives_us_as_long_as_git_works_under_it(tmp_path: Path) -> None:
    shadow = Shadow.of(tmp_path / "not" / "there", tmp_path / "work", Git(user_env(tmp_path)))
    with shadow.locked() as mine:
        (fd,) = shadow.git.keep
        assert mine and os.fstat(fd).st_mode & 0o777 == 0o600
    assert not shadow.git.keep
    with pytest.raises(OSError):
        os.fstat(fd)


def test_what_the_marker_stands_for_is_on_the_disk_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power loss must not leave the marker of a repository whose settings are empty."""
    synced: list[tuple[str, bool]] = []
    real = os.fsync

    def noted(fd: int) -> None:
        path = Path(f"/dev/fd/{fd}").resolve()
        synced.append((path.name, (path.parent / "born").exists()))
        real(fd)

    monkeypatch.setattr(os, "fsync", noted)
    assert shadow_in(tmp_path).born
    assert synced == [("config", False), ("HEAD", False), ("born.new", False)]


def test_another_object_format_begins_anew(tmp_path: Path) -> None:
    shadow = shadow_in(tmp_path)
    (shadow.folder / "mine").touch()
    shadow.ensure()
    assert (shadow.folder / "mine").exists()
    shadow.ensure("sha256")
    assert not (shadow.folder / "mine").exists()
    assert shadow.git.text("rev-parse", "--show-object-format", at=shadow.at()) == "sha256"


def test_what_a_killed_git_left_is_cleared(tmp_path: Path) -> None:
    shadow = shadow_in(tmp_path)
    (shadow.folder / "index.lock").touch()
    (shadow.tmp / "pack").touch()
    shadow.ensure()
    assert not (shadow.folder / "index.lock").exists()
    assert not any(shadow.tmp.iterdir())


HALF_MADE = {
    "nothing but a folder": (),
    "HEAD, and not yet a repository": ("HEAD",),
    "HEAD, settings and refs": ("HEAD", "config", "refs/heads/.", "refs/tags/."),
    "all, but for the marker": ("HEAD", "config", "refs/heads/.", "objects/info/.", "objects/pack/."),
}


@pytest.mark.parametrize("left", HALF_MADE)
def test_a_half_made_repository_is_none_and_is_made_again(left: str, tmp_path: Path) -> None:
    """A kill inside `git init` left a HEAD, which counted as a whole repository for ever."""
    user, log = User(tmp_path), Log()
    user.write("a")
    capture = capture_of(user, tmp_path, log=log)
    shadow = capture._shadow
    for name in ("", *HALF_MADE[left]):
        path = shadow.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith(".") or not name:
            path.mkdir(parents=True, exist_ok=True)
        else:
            path.write_text("ref: refs/heads/master\n" if name == "HEAD" else "")
    assert not shadow.has("1" * 40)
    assert shadow.ref("HEAD") == ""
    assert log.must(capture).whole
    assert Elsewhere(log, tmp_path).files() == on_disk(user.top)


LOCKS = ("HEAD.lock", "config.lock", "packed-refs.lock", "index.lock", "refs/wal-agent/{key}/saved.lock", "gc.pid")


@pytest.mark.parametrize("lock", [*LOCKS, "objects/pack/tmp_pack_x", "objects/pack/.tmp-1-pack-x"])
def test_a_lock_of_a_killed_git_neither_fails_a_capture_nor_sends_all_again(lock: str, tmp_path: Path) -> None:
    user, log = User(tmp_path), Log()
    user.write("a", os.urandom(3000))
    capture = capture_of(user, tmp_path, log=log)
    log.must(capture)
    path = capture._shadow.folder / lock.format(key=capture._shadow.name("").split("/")[2])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    user.write("b")
    assert not log.must(capture).whole
    assert not path.exists()
    assert capture._shadow.has(log.now.commit)


# ---- how git is run


def test_no_variable_of_the_users_reaches_git(tmp_path: Path) -> None:
    user = User(tmp_path)
    user.init()
    head = user.commit()
    lies = {
        "GIT_DIR": "/nowhere",
        "GIT_INDEX_FILE": "/nowhere",
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "core.worktree",
        "GIT_CONFIG_VALUE_0": "/nowhere",
        "GIT_TRACE": str(tmp_path / "trace"),
        "WAL_AGENT_RUN": "x",
    }
    git = Git({**user.env, **lies})
    assert git.text("rev-parse", "HEAD", cwd=user.top) == head
    assert not (tmp_path / "trace").exists()
    script = tmp_path / "git"
    script.write_text("#!/bin/sh\nenv\n")
    script.chmod(0o755)
    seen = Git({**user.env, **lies, "PATH": f"{tmp_path}:{user.env['PATH']}"}).text("x")
    assert "WAL_AGENT" not in seen
    assert not any(line.split("=")[0] in lies for line in seen.splitlines())
    assert "GIT_TERMINAL_PROMPT=0" in seen.splitlines()


def test_no_git_and_a_git_that_fails_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(GitMissing):
        Git({"PATH": str(tmp_path)}).run("version")
    with pytest.raises(GitFailed, match="no-such"):
        Git(user_env(tmp_path)).run("no-such-command")
    with pytest.raises(GitFailed):
        Git(user_env(tmp_path)).run("rev-parse", "HEAD", at=GitDirs(tmp_path / "none"))


def test_a_git_of_the_projects_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "git"
    script.write_text("#!/bin/sh\necho evil\n")
    script.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    for path in (".", "", f":.:{os.environ['PATH']}"):
        git = Git({"PATH": path})
        if len(path) < 2:
            with pytest.raises(GitMissing):
                git.run("version")
        else:
            assert git.run("version").startswith(b"git version")


def test_a_git_in_the_project_is_not_run_though_path_names_its_folder(tmp_path: Path) -> None:
    user = User(tmp_path)
    ran = tmp_path / "ran"
    user.write("node_modules/.bin/git", f"#!/bin/sh\ntouch {ran}\n", 0o755)
    (tmp_path / "link").symlink_to(user.top / "node_modules")
    env = {**user.env, "PATH": f"{user.top}/node_modules/.bin:{tmp_path}/link/.bin:{user.env['PATH']}"}
    git = Shadow.of(tmp_path / "state", user.top.resolve(), Git(env)).git
    assert git.run("version").startswith(b"git version")
    folders = git._environment(None, False)["PATH"].split(":")
    assert not {f"{user.top}/node_modules/.bin", f"{tmp_path}/link/.bin"} & {*folders}
    git.env = {**env, "PATH": f"{user.top}/node_modules/.bin"}
    with pytest.raises(GitMissing):
        git.run("version")
    git.env = {**env, "HOME": str(user.top / "home")}  # a folder that holds the user's own programs too
    git.run("version")
    assert ran.exists()


def test_a_project_that_allows_a_protocol_runs_nothing_by_it(tmp_path: Path) -> None:
    """A partial clone whose missing objects would be fetched by a command; by a git that knows no GIT_NO_LAZY_FETCH."""
    user = User(tmp_path)
    user.init()
    user.commit()
    ran = tmp_path / "ran"
    settings = {
        "core.repositoryFormatVersion": "1",
        "extensions.partialClone": "origin",
        "remote.origin.promisor": "true",
        "remote.origin.url": f"ext::sh -c 'touch% {ran}'",
        "protocol.ext.allow": "always",
        "protocol.allow": "always",
    }
    for key, value in settings.items():
        user.git("config", key, value)
    git = Git(user.env)
    with pytest.raises(GitFailed):
        git.run("cat-file", "-e", "1" * 40, at=GitDirs(user.top / ".git"))
    assert not ran.exists()
    with pytest.raises(GitFailed):
        git.run(
            "-c", "protocol.ext.allow=always", "ls-remote", f"ext::sh -c touch% {ran}", at=GitDirs(user.top / ".git")
        )
    assert not ran.exists()


def test_more_output_than_is_taken_ends_it(tmp_path: Path) -> None:
    git = Git(user_env(tmp_path))
    assert git.run("version", within=GitBounds(1000)).startswith(b"git version")
    with pytest.raises(GitFailed):
        git.run("version", within=GitBounds(3))


def test_one_that_hangs_is_ended_after_its_time(tmp_path: Path) -> None:
    script = tmp_path / "git"
    script.write_text("#!/bin/sh\nexec sleep 600\n")
    script.chmod(0o755)
    git = Git({"PATH": f"{tmp_path}:{os.environ['PATH']}"}, timeout=0.1)
    with pytest.raises(GitFailed):
        git.run("x")


def test_after_a_stop_nothing_is_started(tmp_path: Path) -> None:
    git = Git(user_env(tmp_path))
    git.stop()
    with pytest.raises(GitStopped):
        git.run("version")
    git.go_on()
    assert git.run("version")


def test_the_users_hooks_filters_and_monitors_are_not_run(tmp_path: Path) -> None:
    user = User(tmp_path)
    user.init()
    user.write("a", "1\n")
    user.commit()
    ran = tmp_path / "ran"
    evil = user.write(".git/hooks/evil", f"#!/bin/sh\ntouch {ran}\ncat\n", 0o755)
    for hook in ("pre-commit", "post-index-change", "post-checkout", "fsmonitor-watchman", "reference-transaction"):
        (user.top / ".git" / "hooks" / hook).symlink_to(evil)
    for key, value in {
        "core.fsmonitor": str(evil),
        "filter.evil.clean": str(evil),
        "filter.evil.process": str(evil),
        "filter.evil.required": "true",
        "core.pager": str(evil),
        "core.alternateRefsCommand": str(evil),
        "diff.external": str(evil),
        "uploadpack.packObjectsHook": str(evil),
        "core.sshCommand": str(evil),
    }.items():
        user.git("config", key, value)
        user.git("config", "--global", key, value)
    user.write(".gitattributes", "* filter=evil diff=evil text eol=crlf ident working-tree-encoding=UTF-16\n")
    user.write("b", b"$Id$ one\r\ntwo\n")
    log = Log()
    log.must(capture_of(user, tmp_path, log=log))
    assert not ran.exists()
    assert Elsewhere(log, tmp_path).files() == on_disk(user.top)


NAMES = (
    b"a",
    b"b",
    b"d",
    b"new\nline",
    b"bad\xff",
    b" blank ",
    b"-x",
    b"*",
    b"q\"'\\",
    b":(top)",
    b"\xc3\xa9",
    b"tab\t",
)
paths = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3).map(b"/".join)
contents = st.sampled_from([b"", b"x", b"one\r\ntwo\n", b"\0\xff", b"$Id$\n", b"y" * 5000, b"z" * 100_000])
steps = st.one_of(
    st.tuples(st.just("write"), paths, contents),
    st.tuples(st.just("script"), paths, contents),
    st.tuples(st.just("link"), paths, paths),
    st.tuples(st.just("delete"), paths, st.none()),
    st.tuples(st.just("move"), paths, paths),
    st.tuples(st.just("chmod"), paths, st.sampled_from([0o644, 0o755, 0o600, 0o400])),
    st.tuples(st.just("commit"), st.none(), st.none()),
    st.tuples(st.just("add"), st.none(), st.none()),
    st.tuples(st.just("save"), st.none(), st.none()),
)


def clear(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        with suppress(FileNotFoundError, NotADirectoryError):
            path.unlink()


def parents(top: Path, path: Path) -> bool:
    """Make the folders above; False where a link stands there: git would write through it, and so would we."""
    for above in reversed(path.relative_to(top).parents[:-1]):
        where = top / above
        if where.is_symlink():
            return False
        if where.exists() and not where.is_dir():
            where.unlink()
        where.mkdir(exist_ok=True)
    return True


def do(user: User, step: tuple[str, bytes | None, object], is_git: bool, save: Callable[[], object]) -> None:
    what, name, with_ = step
    if what == "save":
        save()
        return
    if name is None:
        if is_git:
            user.git("add", "-A")
        if is_git and what == "commit":
            user.git("commit", "-q", "--allow-empty", "-m", "c")
        return
    path = user.top / os.fsdecode(name)
    if not parents(user.top, path):
        return
    match what, with_:
        case "write" | "script", bytes(data):
            clear(path)
            path.write_bytes(data)
            path.chmod(0o755 if what == "script" else 0o644)
        case "link", bytes(target):
            clear(path)
            path.symlink_to(os.fsdecode(target))
        case "delete", _:
            clear(path)
        case "move", bytes(target):
            to = user.top / os.fsdecode(target)
            apart = not to.is_relative_to(path) and not path.is_relative_to(to)
            if apart and os.path.lexists(path) and parents(user.top, to):
                clear(to)
                if os.path.lexists(path):
                    path.rename(to)
        case "chmod", int(mode):
            if path.is_file() and not path.is_symlink():
                path.chmod(mode)


@settings(max_examples=examples(25), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(steps, max_size=25), st.booleans())
def test_what_comes_out_is_what_went_in(script: list[tuple[str, bytes | None, object]], is_git: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder).resolve()
        user, log = User(root), Log()
        if is_git:
            user.init()
        capture = capture_of(user, root, log=log)
        for step in script:
            do(user, step, is_git, lambda: log.take(capture))
        before = fingerprint(user.top / ".git") if is_git else {}
        log.take(capture)
        assert fingerprint(user.top / ".git") == before or not is_git
        there = Elsewhere(log, root)
        assert there.files() == on_disk(user.top)
        assert log.now.files == len(there.files())
        assert log.now.size == sum(len(data) for _, data in there.files().values())
        if is_git:
            listed = user.git("ls-files", "-s", "-z").split(b"\0")[:-1]
            index = there.files(there.contents.index) if there.contents.index else {}
            assert set(index) == {entry.partition(b"\t")[2] for entry in listed}


def test_the_repository_says_the_version_of_its_format_and_its_lock_is_private(tmp_path: Path) -> None:
    """A git that does not know an extension must not take version 0 for one without any."""
    shadow = Shadow.of(tmp_path / "state", tmp_path / "work", Git(user_env(tmp_path)))
    for format, version in (("sha1", 0), ("sha256", 1)):
        with shadow.locked() as mine:
            assert mine and shadow.ensure(format) and not shadow.ensure(format)
        assert f"repositoryformatversion = {version}\n" in (shadow.folder / "config").read_text()
    assert shadow.folder.with_suffix(".lock").stat().st_mode & 0o777 & ~0o600 == 0
    assert shadow.git.keep == ()


def test_a_folder_that_could_not_be_emptied_is_taken_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shadow = shadow_in(tmp_path)
    (shadow.folder / "born").unlink()
    with monkeypatch.context() as patch:
        patch.setattr(Shadow, "wipe", lambda _: None)
        assert shadow.ensure()
    assert shadow.born and not shadow.ensure()


def test_a_repository_that_git_cannot_read_has_no_refs(tmp_path: Path) -> None:
    shadow = shadow_in(tmp_path)
    (one,) = commits(shadow, 1)
    shadow.save(one)
    assert shadow.ref(shadow.name(SAVED)) == one
    (shadow.folder / "config").write_text("[broken")
    assert shadow.ref(shadow.name(SAVED)) == "" and not shadow.has(one)


def test_a_pack_that_holds_all_is_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shadow = shadow_in(tmp_path)
    (one,) = commits(shadow, 1)
    shadow.keep(one, "", (one,))
    made, asked, real = packed(shadow, one), list[str](), Git.run

    def run(git: Git, *words: str, **more: Any) -> bytes:
        asked.append(words[0])
        return real(git, *words, **more)

    monkeypatch.setattr(Git, "run", run)
    shadow.tidy(made)
    assert asked == ["index-pack", "prune-packed", "prune"] and objects(shadow) == (0, 1)


def test_a_capture_with_a_long_list_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shadow = shadow_in(tmp_path)
    (one,) = commits(shadow, 1)
    size = len(shadow.git.run("ls-tree", "-z", "--full-tree", one, at=shadow.at()))
    monkeypatch.setattr("wal_agent.capture.shadow.MAX_LISTED", size)
    assert shadow.contents(one).commit == one
    monkeypatch.setattr("wal_agent.capture.shadow.MAX_LISTED", size - 1)
    with pytest.raises(Damaged):
        shadow.contents(one)
