"""Each kind of evidence: what it says of a command that ran and of one that did not, and of what it says nothing.
Kills half-way are in tests/faults/evidence."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.faults.evidence.stage import Call, Unhurried, age, assessed, shell
from tests.unit.recovery.cases import OTHER, intent, opening, started, state_of, turn
from wal_agent.calls.call import ReadCall
from wal_agent.calls.reading import read_calls
from wal_agent.evidence import collector
from wal_agent.evidence.collector import MAX_FACTS, MAX_VALUE, Remains, are_entangled, read_parts
from wal_agent.evidence.file_state import (
    MAX_ENTRIES,
    hash_listing,
    parse_entry,
    read_file,
    stat_entry,
)
from wal_agent.evidence.model import Budget, times_settled
from wal_agent.wording import findings


def budget() -> Budget:
    return Budget(Unhurried(), 1.0)


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    top = tmp_path / "shop"
    (top / "d").mkdir(parents=True)
    for name in ("a", "b", "d/x"):
        (top / name).write_text(f"{name}\n")
    (top / "link").symlink_to("d")
    (top / "to_a").symlink_to("a")
    os.mkfifo(top / "pipe")
    age(top)
    return top


def run(command: str, top: Path) -> None:
    subprocess.run(["bash", "-c", command], cwd=top, stdin=subprocess.DEVNULL, capture_output=True, check=False)


def before_and_after(command: str, top: Path, gone: bool = True) -> tuple[str, str]:
    """Of the command before it ran, and afterwards."""
    call = shell(command)
    facts = call.facts(top)
    (first,) = assessed(top, (call, facts), gone=gone)
    run(command, top)
    (last,) = assessed(top, (call, facts), gone=gone)
    return first.finding, last.finding


@pytest.mark.parametrize(
    "command",
    [
        *("rm a b", "rm -rf d", "rm to_a", "rm pipe", "unlink a", "mv a c", "mv a d", "mv link new"),
        *("cp a c", "cp -p a c", "cp a d", "cp -r d new", "mkdir new", "mkdir -p new/er", "touch new", "touch a"),
        *("ln -s a new", "ln -sfn a link", "ln a new", "truncate -s 0 a"),
        *(
            "echo hi > a",
            "echo -n hi > new",
            "cat > new <<'E'\n$x\nE\n",
            ": > a",
            "echo >> a",
        ),
        *("cd d && rm x", "/bin/rm a", "cp a c && rm a", "rm -f nope a", "rm d/../a", "mkdir new && touch new/x"),
    ],
)
def test_before_and_after(command: str, shop: Path) -> None:
    first, last = before_and_after(command, shop)
    assert (first, last) == ("not_started", "completed")


@pytest.mark.parametrize(
    "command",
    [
        *("rm -i a", "rm -rf .", "rm -r d/.", "rm --no-preserve-root a", "rm a a", "rm nope", "rm d", "rm link/"),
        *(
            "mv -n a b",
            "mv -t d a",
            "mv a link",
            "mv a/ c",
            "mv -T a b",
            "cp -u a b",
            "cp to_a c",
            "cp -l a c",
            "cp a link",
        ),
        *(
            "cp a to_a",
            "mkdir -m 700 new",
            "mkdir d",
            "touch -d now a",
            "touch to_a",
            "ln -s a link",
            "ln a d",
        ),
        *(
            "ln -s a b c",
            "truncate -s +1 a",
            "truncate a",
            "sed -i 's/a/b/w out' a",
            "sed -i s/a/date/e a",
            "sed -i.bak 1d a",
        ),
        *(
            "sed s/a/b/ a",
            "sed -i s/a/b/ to_a",
            "echo -e 'a\\tb' > a",
            "echo 'a\\tb' > a",
            "echo hi > to_a",
        ),
        *(
            "echo hi > d",
            "printf 'a%s\\n' b c > a",
            "rm a > a",
            "cp a b > b",
            "rm a; touch a",
            "mv a b; cp b c",
        ),
        *("mv d new; touch d/x", "./rm a", "python x.py", "rm a && ./x.sh", "echo hi > a > b", "ls > a", "make"),
    ],
)
def test_nothing_is_said_of_what_is_not_plain(command: str, shop: Path) -> None:
    call = shell(command)
    facts = call.facts(shop)
    run(command, shop)
    assert assessed(shop, (call, facts))[0].finding == "unknown"


@pytest.mark.parametrize("command", ["rm -f nope", "mkdir -p d", "cp a same", "truncate -s 2 a", "ln -sfn d link"])
def test_what_was_so_before_is_completed_either_way(command: str, shop: Path) -> None:
    (shop / "same").write_text("a\n")
    assert before_and_after(command, shop) == ("completed", "completed")
    found = before_and_after(f"{command} && touch new", shop)
    assert found == ("not_started", "completed")


@pytest.mark.parametrize("command", ["rm a", "mv a c", "cp a c", "mkdir new", "echo hi > a", "ls > out", "make > out"])
def test_a_process_that_may_live_can_still_begin(command: str, shop: Path) -> None:
    assert before_and_after(command, shop, gone=False)[0] == "unknown"


def test_output_that_was_opened(shop: Path) -> None:
    (shop / "out").write_text("old\n")
    age(shop)
    assert before_and_after("make > out", shop) == ("not_started", "unknown")
    (shop / "out").write_text("old\n")
    age(shop)
    call = shell("make 2> new > out")
    facts = call.facts(shop)
    assert assessed(shop, (call, facts))[0].finding == "not_started"
    (shop / "new").touch()
    (shop / "new").unlink()  # the command may have run and have removed it
    assert assessed(shop, (call, facts))[0].finding == "unknown"
    age(shop)
    assert before_and_after("make >> out", shop)[0] == "unknown"  # opening it leaves no mark
    age(shop)
    assert before_and_after("ls >> out", shop)[0] == "not_started"  # but here a mark is all that there is to leave


def test_a_file_that_changed_just_now_proves_nothing_by_its_times(shop: Path) -> None:
    (shop / "out").write_text("fresh\n")
    call = shell("make > out")
    facts = call.facts(shop)
    fresh = [f.what for f in facts if f.where == str(shop / "out")] == ["fresh"]
    assert assessed(shop, (call, facts))[0].finding == ("unknown" if fresh else "not_started")
    old = 10**18 + 5
    assert times_settled(old, 10**18 + 30_000_000) and not times_settled(old, 10**18 + 10_000_000)
    seconds = 10**18  # a file system that counts in seconds
    assert not times_settled(seconds, 10**18 + 30_000_000) and times_settled(seconds, 10**18 + 3_000_000_000)


def test_another_machine(shop: Path) -> None:
    """Without a tree that was put back nothing is known there but what the files themselves say."""

    def said(command: str, covered: bool) -> str:
        call = shell(command)
        facts = call.facts(shop)
        state = state_of(
            opening(workspace=str(shop)), started(), turn(), intent(1, call.tool, call.input, before=facts)
        )
        return collector.decide_verdicts(
            state,
            read_calls(state, {1: call.input}),
            OTHER,
            shop,
            Remains(True),
            Unhurried(),
            covers=lambda p: covered,
        )[0].finding

    for command in ("rm a", "mv a c", "cp a c", "echo hi > a", "echo hi >> a", "mkdir new"):
        assert said(command, covered=False) == "unknown"
        assert said(command, covered=True) == "not_started"
    for command in ("rm -r d", "touch a", "truncate -s 0 a", "make > out", "npm ci", "sed -i s/z/y/ pipe"):
        assert said(command, covered=False) == said(command, covered=True) == "unknown"
    (shop / "c").write_text("a\n")
    assert said("cp a c", covered=False) == "completed"


def test_a_tree_that_was_put_back_on_the_same_machine(shop: Path) -> None:
    """What is missing there may be missing because the capture is older than it."""
    call = shell("rm a")
    facts = call.facts(shop)
    (shop / "a").unlink()
    state = state_of(opening(workspace=str(shop)), started(), intent(1, call.tool, call.input, before=facts))
    host = state.openings[0].opening.host
    (told,) = collector.decide_verdicts(
        state,
        read_calls(state, {1: call.input}),
        host,
        shop,
        Remains(True),
        Unhurried(),
        covers=lambda p: True,
    )
    assert told.finding == "unknown"
    (told,) = collector.decide_verdicts(
        state, read_calls(state, {1: call.input}), host, shop, Remains(True), Unhurried()
    )
    assert told.finding == "completed"


@pytest.mark.parametrize(
    ("command", "instead"),
    [
        ("mv a c", "rm a; echo other > c"),
        ("mv a c", "rm a"),
        ("cp a c", "echo aa > c"),
        ("ln a new", "cp a new"),
        ("ln -s a new", "ln -s b new"),
        ("mkdir new", "touch new"),
        ("touch new", "mkdir new"),
        ("sed -i s/a/b/ a", "echo b > a"),
        ("truncate -s 0 a", "rm a; mkdir a"),
        ("rm a", "rm a; echo a > a"),
        ("echo hi > a", "echo ho > a"),
        ("echo hi >> a", "echo ho >> a"),
    ],
)
def test_something_else_that_was_done(command: str, instead: str, shop: Path) -> None:
    call = shell(command)
    facts = call.facts(shop)
    run(instead, shop)
    assert assessed(shop, (call, facts))[0].finding == "unknown"


@pytest.mark.parametrize(
    ("commands", "apart"),
    [
        (("echo x > b", "cp b c"), False),  # reads what was changed
        (("rm a", "touch a"), False),
        (("mv d new", "touch d/x"), False),
        (("mkdir new", "cp a new"), False),  # whether it is a folder already decides what cp does
        (("mkdir new", "cp a new/a"), True),
        (("cp a c", "rm a"), True),  # reads what is changed later
        (("rm a", "rm b"), True),
        (("touch a", "ls -l a > out"), True),
    ],
)
def test_steps_that_work_on_one_thing(commands: tuple[str, ...], apart: bool, shop: Path) -> None:
    call = shell(" && ".join(commands))
    assert are_entangled(read_parts(ReadCall(call.tool, call.input), shop)) is not apart
    assert bool(call.facts(shop)) is apart


def test_a_copy_that_was_the_same_before_its_source_changed(shop: Path) -> None:
    (shop / "c").write_text("b\n")
    call = shell("echo x > b && cp b c")
    facts = call.facts(shop)
    run("echo x > b", shop)
    assert assessed(shop, (call, facts))[0].finding == "unknown"


@pytest.mark.parametrize("command", ["touch a", "truncate -s 1 a", "sed -i s/a/b/ a", "echo hi >> a"])
def test_what_another_call_may_have_done(command: str, shop: Path) -> None:
    """A command that cannot be read was in flight, too."""
    call, other = shell(command), shell("./x.sh")
    facts = call.facts(shop)
    run(command, shop)
    assert assessed(shop, (call, facts), (other, ()))[0].finding == "unknown"


@pytest.mark.parametrize(
    ("command", "other"),
    [
        ("rm a", "mv a c"),
        ("rm -rf d", "mv d new"),
        ("mkdir new", "cp -r d new"),
        ("touch new", "cp a new"),
        ("mv a c", "mv -f a c"),
        ("cp a c", "cp -p a c"),
        ("ln -s a new", "ln -sfn a new"),
        ("truncate -s 0 new", "touch new"),
    ],
)
def test_what_another_call_is_known_to_have_changed(command: str, other: str, shop: Path) -> None:
    """It looks as the call would leave it, and the call never ran."""
    call = shell(command)
    facts = call.facts(shop)
    run(other, shop)
    assert assessed(shop, (call, facts))[0].finding == "completed"
    (said, _) = assessed(shop, (call, facts), (shell(other), ()))
    assert said.finding == "unknown"


@pytest.mark.parametrize("command", ["echo hi >> a", "touch a", "truncate -s 1 a"])
@pytest.mark.parametrize("other", ["cp b two", "rm two", "echo hi >> two"])
def test_a_file_with_two_names_is_nobodys_alone(command: str, other: str, shop: Path) -> None:
    (shop / "two").hardlink_to(shop / "a")
    age(shop)
    call = shell(command)
    facts = call.facts(shop)
    run(command, shop)
    assert assessed(shop, (call, facts))[0].finding == "completed"
    (shop / "two").unlink()  # the name that it had is gone, too
    assert assessed(shop, (call, facts), (shell(other), ()))[0].finding == "unknown"


def test_a_replacement_by_the_other_name(shop: Path) -> None:
    (shop / "two").hardlink_to(shop / "a")
    calls = [
        Call("replace", {"file_path": str(shop / n), "old_string": "a", "new_string": "q"}) for n in ("a", "two", "b")
    ]
    facts = [c.facts(shop) for c in calls]
    (shop / "two").write_text("q\n")
    both = assessed(shop, (calls[0], facts[0]), (calls[1], facts[1]))
    assert [v.finding for v in both] == ["unknown", "unknown"]
    assert assessed(shop, (calls[0], facts[0]), (calls[2], facts[2]))[0].finding == "completed"


@pytest.mark.parametrize(
    "first",
    [
        """awk '{print "a;" > "out"}' a""",
        """awk '{print "INSERT (" $1 ");" > "out"}' a""",
        """awk '{print "a;" | "cat > out"}' a""",
        "sed -n '/x\\/p;/!w out\n' a",
        "sort -o out a",
    ],
)
def test_a_step_that_writes_though_it_looks_like_reading(first: str, shop: Path) -> None:
    """Stopped behind it: the rest of the call has not begun, but the call has."""
    call = shell(f"{first} && rm b")
    facts = call.facts(shop)
    run(first, shop)
    assert (shop / "out").exists()
    assert assessed(shop, (call, facts))[0].finding in ("unknown", "partial")


# ---- npm -----------------------------------------------------------------------------------------------------------


def project(top: Path, **more: object) -> Path:
    (top / "package.json").write_text(json.dumps({"name": "shop", **more}))
    (top / "package-lock.json").write_text("{}")
    age(top)
    return top / "node_modules/.package-lock.json"


def after(shop: Path, command: str, mark: str | None) -> str:
    call = shell(command)
    facts = call.facts(shop)
    (shop / "node_modules/alpha").mkdir(parents=True, exist_ok=True)
    if mark is not None:
        (shop / "node_modules/.package-lock.json").write_text(mark)
    return assessed(shop, (call, facts))[0].finding


def test_npm_writes_its_mark_last(shop: Path) -> None:
    project(shop)
    call = shell("npm ci")
    assert assessed(shop, (call, call.facts(shop)))[0].finding == "not_started"
    assert after(shop, "npm ci", None) == "partial"
    assert after(shop, "npm ci", '{"packages": {') == "partial"
    age(shop)
    assert after(shop, "npm install --save-dev alpha", '{"packages": {}}') == "completed"


def test_an_old_mark_of_npm_says_nothing_of_this_call(shop: Path) -> None:
    mark = project(shop)
    mark.parent.mkdir()
    mark.write_text("{}")
    age(shop)
    call = shell("npm install delta")
    assert assessed(shop, (call, call.facts(shop)))[0].finding == "not_started"
    assert after(shop, "npm install delta", None) == "partial"


@pytest.mark.parametrize("script", ["prepare", "postinstall", "dependencies"])
def test_scripts_of_the_project_run_after_the_mark(shop: Path, script: str) -> None:
    project(shop, scripts={script: "make"})
    assert after(shop, "npm ci", "{}") == "unknown"
    age(shop)
    (shop / "node_modules/.package-lock.json").unlink()
    assert after(shop, "npm ci --ignore-scripts", "{}") == "completed"


@pytest.mark.parametrize("command", ["npm ci --prefix d", "npm install -g alpha", "npm ci --dry-run", "npm run build"])
def test_npm_that_works_elsewhere(shop: Path, command: str) -> None:
    project(shop)
    assert after(shop, command, "{}") == "unknown"


def test_npm_in_a_workspace_of_a_project_above(shop: Path) -> None:
    project(shop)
    (shop.parent / "package.json").write_text('{"workspaces": ["shop"]}')
    call = shell("npm ci")
    assert assessed(shop, (call, call.facts(shop)))[0].finding == "unknown"


@pytest.mark.parametrize(
    ("command", "file"), [("uv sync", "uv.lock"), ("cargo add serde", "Cargo.toml"), ("pnpm install", "pnpm-lock.yaml")]
)
def test_other_installers_are_told_by_their_files(shop: Path, command: str, file: str) -> None:
    call = shell(command)
    facts = call.facts(shop)
    (shop / file).write_text("new")
    (told,) = assessed(shop, (call, facts))
    assert told.finding == "unknown" and file in told.why and told.why.endswith(findings.PACKAGES_BEGUN.format(""))


# ---- looking -------------------------------------------------------------------------------------------------------


def test_entries_are_read_as_they_are_told(shop: Path) -> None:
    for name in ("a", "d", "link", "pipe", "nope"):
        found = stat_entry(str(shop / name))
        assert found is not None and parse_entry(found.value) == found
    for value in (
        "",
        "absent:1",
        "file",
        "file:1:2",
        "file:1:2:3:4:5:6:-7",
        "disk:1:2:3:4:5:6:7",
        f"file:{'9' * 30}:1:1:1:1:1:1",
    ):
        assert parse_entry(value) is None
    assert stat_entry(f"{shop}/a/b") is None and stat_entry("\0") is None


def test_a_tree_that_is_too_big_is_not_listed(tmp_path: Path) -> None:
    for n in range(MAX_ENTRIES + 1):
        (tmp_path / str(n)).touch()
    assert hash_listing(str(tmp_path), budget()) is None
    (tmp_path / "0").unlink()
    whole = hash_listing(str(tmp_path), budget())
    assert whole is not None
    (tmp_path / "1").write_text("more")
    assert hash_listing(str(tmp_path), budget()) not in (None, whole)
    assert hash_listing(f"{tmp_path}/1", budget()) is None


def test_live_files_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "proc").symlink_to("/proc/self")
    assert read_file("/proc/self/status", budget()).data is None
    assert read_file(f"{tmp_path}/proc/status", budget()).data is None


def test_facts_stay_small(shop: Path) -> None:
    for command in (
        "rm " + " ".join(f"f{n}" for n in range(200)),
        "; ".join(f"touch {'x' * 200}{n}" for n in range(16)),
    ):
        facts = shell(command).facts(shop)
        assert len(facts) <= MAX_FACTS and all(len(f.value) <= MAX_VALUE for f in facts)
