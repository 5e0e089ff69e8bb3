"""evidence: looks are bounded and change nothing, and what surrounds a call is judged on the side of doubt."""

from __future__ import annotations

import json
import os
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.unit.recovery.cases import HOST, OTHER, captured, end, intent, opening, started, state_of, turn
from wal_agent.calls.call import ReadCall
from wal_agent.calls.reading import read_calls
from wal_agent.evidence import collector, files
from wal_agent.evidence.collector import CallOverlap, Remains, collect_facts, find_running_calls, split_call
from wal_agent.evidence.file_state import FileNow, read_file, sha256
from wal_agent.evidence.files import target_file
from wal_agent.evidence.model import MAX_BYTES, MAX_FILES, Budget
from wal_agent.records import AnyRecord, Class, Cut, Fact, Host, RunsOn
from wal_agent.supervise.leftovers import Leftover, name_calls
from wal_agent.wording import findings


class Ticking:
    """A clock that moves on by `step` seconds at each look."""

    def __init__(self, step: float = 0.0) -> None:
        self.step, self.at = step, 100.0

    def now(self) -> float:
        return self.at

    def boot(self) -> float:
        self.at += self.step
        return self.at

    def awake(self) -> float:
        return self.at

    def sleep(self, seconds: float) -> None:
        self.at += seconds


def idle() -> float:
    """Looking is no work."""
    return 0.0


def write(path: object, content: str = "new") -> bytes:
    return json.dumps({"file_path": str(path), "content": content}).encode()


def told(path: Path, workspace: Path) -> tuple[Fact, ...]:
    return collect_facts(ReadCall("write_file", write(path)), workspace, Ticking(), work=idle)


def test_a_file_is_told_by_its_hash_and_none_as_absent(tmp_path: Path) -> None:
    file = tmp_path / "a"
    assert told(file, tmp_path) == (Fact(what="file", where=str(file), value="absent"),)
    file.write_bytes(b"old")
    assert told(Path("a"), tmp_path) == (Fact(what="file", where=str(file), value=sha256(b"old")),)
    assert told(Path("../" + tmp_path.name + "/a"), tmp_path)[0].where == str(file)


def test_links_pipes_folders_and_big_files_are_not_looked_at(tmp_path: Path) -> None:
    real, link, pipe, big = (tmp_path / n for n in ("real", "link", "pipe", "big"))
    real.write_bytes(b"x")
    link.symlink_to(real)
    os.mkfifo(pipe)
    with big.open("wb") as f:
        f.truncate(MAX_BYTES + 1)
    assert [told(p, tmp_path) for p in (link, pipe, big, tmp_path, real / "under")] == [()] * 5
    with big.open("wb") as f:
        f.truncate(MAX_BYTES)
    assert len(told(big, tmp_path)) == 1


def test_a_slow_read_gives_nothing(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 10**6)
    assert collect_facts(ReadCall("write_file", write("a")), tmp_path, Ticking(0.3), work=idle) == ()
    assert len(collect_facts(ReadCall("write_file", write("a")), tmp_path, Ticking(0.001), work=idle)) == 1


@pytest.mark.parametrize(("step", "facts"), [(0.03, 0), (0.001, 1)])
def test_work_ends_sooner_than_waiting_for_a_turn(tmp_path: Path, step: float, facts: int) -> None:
    """A thread that a loaded machine let wait for 60 ms loses no evidence."""
    (tmp_path / "a").write_bytes(b"x" * 10**6)
    assert len(collect_facts(ReadCall("write_file", write("a")), tmp_path, Ticking(), work=Ticking(step).boot)) == facts
    assert len(collect_facts(ReadCall("write_file", write("a")), tmp_path, Ticking(step), work=idle)) == 1


def test_a_file_that_changes_while_it_is_read_gives_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"x")
    read = os.read

    def reads(fd: int, n: int) -> bytes:
        data = read(fd, n)
        file.write_bytes(b"yy")
        return data

    monkeypatch.setattr(os, "read", reads)
    assert read_file(str(file), Budget(Ticking(), 1e9)).value is None


@pytest.mark.parametrize(
    "named", ["", " a", "a ", "@a", "@/a", "a%20b", "file:///a", "~/a", "a/", "a\0b", 7, None, ["a"], "\ud800"]
)
def test_paths_that_the_agent_may_read_in_another_way_give_nothing(tmp_path: Path, named: object) -> None:
    assert (
        collect_facts(ReadCall("write_file", json.dumps({"file_path": named, "content": ""}).encode()), tmp_path) == ()
    )


@given(st.binary(max_size=40))
def test_any_input_and_any_other_tool(data: bytes) -> None:
    assert collect_facts(ReadCall("write_file", data), Path("/nowhere")) == ()
    assert collect_facts(ReadCall("run_shell_command", write("a")), Path("/nowhere")) == ()


# ---- around a call -------------------------------------------------------------------------------------------------

WS = Path("/w/shop")
START = (opening(), started(), turn(), captured())


def is_alone(*records: AnyRecord, inputs: dict[int, bytes]) -> bool:
    state = state_of(*START, *records)
    mine = next(o for o in state.open if o.intent.call == 2)
    return CallOverlap(state, read_calls(state, inputs), WS).ran_alone(mine)


def file_call(call: int, path: str = "/w/shop/a", cls: Class = "idempotent", time: float = 5.0) -> AnyRecord:
    return intent(call, "write_file", write(path), cls, time=time)


A, B, LINKED = write("/w/shop/a"), write("/w/shop/b"), write("/w/link/a")


def test_alone() -> None:
    assert is_alone(file_call(2), inputs={2: A})
    assert is_alone(file_call(1), end(1), captured(settled=1), file_call(2), inputs={2: A})  # long over
    assert is_alone(file_call(1, "/w/shop/b"), file_call(2), inputs={1: B, 2: A})
    reads = b'{"command":"git status"}'
    assert is_alone(intent(1, "read_file", cls="read_only"), file_call(2), inputs={1: A, 2: A})
    assert is_alone(intent(1, input=reads, cls="read_only"), file_call(2), inputs={1: reads, 2: A})


def test_not_alone() -> None:
    assert not is_alone(intent(1), file_call(2), inputs={2: A})  # a command in flight
    assert not is_alone(file_call(1), file_call(2), inputs={1: A, 2: A})  # the same file
    assert not is_alone(file_call(1), file_call(2), inputs={1: LINKED, 2: A})  # maybe the same file
    assert not is_alone(file_call(1), file_call(2), inputs={2: A})  # its input cannot be read
    assert not is_alone(intent(1), file_call(2, time=5.5), end(1), inputs={2: A})  # ended while ours was in flight
    assert not is_alone(file_call(2), intent(3), end(3), inputs={2: A})  # began and ended since
    assert not is_alone(file_call(2), intent(3), end(3), captured(settled=3), inputs={2: A})  # the same, forgotten
    assert not is_alone(file_call(2), inputs={})


@pytest.mark.parametrize(
    ("tool", "input"), [("run_shell_command", b'{"command":"./look.sh"}'), ("run_shell_command", None), ("look", b"{}")]
)
def test_what_only_the_project_calls_reading_may_change_anything(tool: str, input: bytes | None) -> None:
    inputs = {2: A} if input is None else {1: input, 2: A}
    assert not is_alone(intent(1, tool, input or b"", "read_only"), file_call(2), inputs=inputs)


@pytest.mark.parametrize("ended", [500.0, 1005.0, 1020.0])
def test_a_clock_that_steps_back_makes_nothing_alone(tmp_path: Path, ended: float) -> None:
    """Two same calls, of which one ran and ended while the other was in flight and never began."""
    (tmp_path / "log").write_text("old\n")
    data = b'{"command":"echo x >> log"}'
    facts = collect_facts(ReadCall("run_shell_command", data), tmp_path, Ticking(), work=idle)
    (tmp_path / "log").write_text("old\nx\n")
    first = intent(1, input=data, cls="mutation", before=facts, time=1000.0)
    second = intent(2, input=data, cls="mutation", before=facts, time=1010.0)
    over = msgspec.structs.replace(end(1), time=ended)
    state = state_of(opening(workspace=str(tmp_path)), started(), turn(), first, second, over)
    (said,) = collector.decide_verdicts(state, read_calls(state, {1: data, 2: data}), HOST, tmp_path, Remains(True))
    assert said.finding == "unknown"


def test_a_call_that_was_not_logged_before_it_ran_is_never_not_started(tmp_path: Path) -> None:
    """Whatever facts stand beside it, they are not of before it could begin."""
    file = tmp_path / "a"
    file.write_bytes(b"old")
    data = write(file)
    late = intent(1, "write_file", data, "idempotent", before=told(file, tmp_path))
    late = msgspec.structs.replace(late, unlogged=True)
    state = state_of(opening(workspace=str(tmp_path)), started(), turn(), late)
    (said,) = collector.decide_verdicts(state, read_calls(state, {1: data}), HOST, tmp_path, Remains(True), Ticking())
    assert said.finding == "unknown" and said.why == findings.UNLOGGED


def shell(command: str, file: str = "x", newline: str = "\n") -> str:
    """The command line of Gemini's shell around a command."""
    rows = [
        "/usr/bin/bash -c shopt -u promptvars nullglob extglob nocaseglob dotglob; "
        f"_bgpids_file=/tmp/gemini-shell-{file}/bgpids.tmp",
        "(",
        "  trap 'jobs -p > \"$_bgpids_file\"' EXIT",
        command,
        ")",
        "__code=$?",
        "exit $__code",
    ]
    return newline.join(rows)


def test_which_commands_still_ran() -> None:
    calls = [intent(n, input=json.dumps({"command": c}).encode()) for n, c in ((1, "make e2e"), (2, "npm test"))]
    state = state_of(*START, *calls)
    read = read_calls(state, {n: o.intent.input.data or b"" for n, o in enumerate(state.open, 1)})
    assert find_running_calls("gemini", state, read, [shell("npm test"), "node /x/npm test"]) == {2}
    assert find_running_calls("gemini", state, read, [shell("npm test", newline=" ")]) == {2}
    assert (
        find_running_calls("gemini", state, read, ["node /x/npm test"]) == frozenset()
    )  # only what the shell had started
    assert find_running_calls("gemini", state, read, [shell("npm test && make e2e")]) == frozenset()
    assert find_running_calls("gemini", state, read, []) == frozenset()


def test_of_identical_calls_as_many_must_run() -> None:
    state = state_of(*START, intent(1), intent(2))
    read = read_calls(state, dict.fromkeys((1, 2), b'{"command":"make"}'))
    assert find_running_calls("gemini", state, read, [shell("make")]) == frozenset()
    assert find_running_calls("gemini", state, read, [shell("make")] * 2) == frozenset()  # one shell and its fork
    assert find_running_calls("gemini", state, read, [shell("make"), shell("make", "y")]) == {1, 2}


@pytest.mark.parametrize(
    "line",
    [
        "bash -c ./deploy.sh --watch-only",
        "bash -c ./deploy.sh",
        shell("./deploy.sh --watch-only"),
        shell("cd x; ./deploy.sh"),
        shell("echo\n./deploy.sh"),
        shell("./deploy.sh") + "; more",
        "vi " + shell("./deploy.sh"),
    ],
)
def test_a_process_that_only_names_the_command_is_not_the_call(line: str) -> None:
    state = state_of(*START, intent(1))
    read = read_calls(state, {1: b'{"command":"./deploy.sh"}'})
    assert find_running_calls("gemini", state, read, [line]) == frozenset()
    assert find_running_calls("gemini", state, read, [line, shell(" ./deploy.sh ")]) == {1}


# ---- the whole -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "gone", "finding"), [(HOST, True, "not_started"), (HOST, False, "unknown"), (OTHER, True, "unknown")]
)
def test_the_file_as_it_was(tmp_path: Path, host: Host, gone: bool, finding: str) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"old")
    data = write(file)
    state = state_of(
        opening(workspace=str(tmp_path)),
        started(),
        turn(),
        intent(1, "write_file", data, "idempotent", before=told(file, tmp_path)),
    )
    (said,) = collector.decide_verdicts(state, read_calls(state, {1: data}), host, tmp_path, Remains(gone), Ticking())
    assert said.finding == finding
    file.write_bytes(b"new")
    (said,) = collector.decide_verdicts(state, read_calls(state, {1: data}), host, tmp_path, Remains(gone), Ticking())
    assert said.finding == "completed"


def test_a_path_in_the_old_folder_means_the_same_place_in_the_new_one(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"new")
    state = state_of(*START, intent(1, "write_file", A, "idempotent"))
    (said,) = collector.decide_verdicts(state, read_calls(state, {1: A}), OTHER, tmp_path, Remains(True), Ticking())
    assert said.finding == "completed" and str(tmp_path) in said.why


def test_an_older_run_on_another_machine_is_not_this_place(tmp_path: Path) -> None:
    data = write(tmp_path / "a")
    state = state_of(
        opening(1, host=OTHER, workspace=str(tmp_path)),
        started(),
        intent(1, "write_file", data, "idempotent", before=told(tmp_path / "a", tmp_path)),
        opening(2, "dead", host=HOST, workspace=str(tmp_path)),
        started(),
    )
    (said,) = collector.decide_verdicts(state, read_calls(state, {1: data}), HOST, tmp_path, Remains(True))
    assert said.finding == "unknown"


def test_every_open_call_gets_a_verdict_within_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[str] = []

    def counted_look(path: str, budget: Budget) -> FileNow:
        reads.append(path)
        return read_file(path, budget)

    monkeypatch.setattr(files, "read_file", counted_look)
    inputs = {n: write(tmp_path / str(n)) for n in range(1, 31)}
    state = state_of(*START, *(intent(n, "write_file", i, "idempotent") for n, i in inputs.items()))
    assert [
        v.call
        for v in collector.decide_verdicts(state, read_calls(state, inputs), HOST, tmp_path, Remains(True), Ticking())
    ] == list(inputs)
    assert len(reads) == 30
    slow = Ticking(0.2)
    said = collector.decide_verdicts(state, read_calls(state, inputs), HOST, tmp_path, Remains(True), slow)
    assert len(said) == 30 and {v.finding for v in said[-5:]} == {"unknown"} and len(reads) < 50


@pytest.mark.parametrize(("step", "finding"), [(0.0, "not_started"), (0.02, "unknown")])
def test_reading_what_other_calls_did_takes_no_more_than_half_of_the_time(
    tmp_path: Path, step: float, finding: str
) -> None:
    """What there was no time to read may have changed anything."""
    mine, reads = write(tmp_path / "a"), b'{"command":"git status"}'
    ended = [r for n in range(1, 101) for r in (intent(n, input=reads, cls="read_only"), end(n))]
    last = intent(101, "write_file", mine, "idempotent", before=told(tmp_path / "a", tmp_path))
    state = state_of(opening(workspace=str(tmp_path)), started(), turn(), *ended, last)
    inputs = {**dict.fromkeys(range(1, 101), reads), 101: mine}
    (said,) = collector.decide_verdicts(state, read_calls(state, inputs), HOST, tmp_path, Remains(True), Ticking(step))
    assert said.finding == finding and said.why.endswith(findings.NOT_ALONE.format("")) == (step > 0)


def test_a_call_reads_some_files_at_most(tmp_path: Path) -> None:
    budget = Budget(Ticking(), 1e9)
    (tmp_path / "a").write_bytes(b"x")
    found = [read_file(str(tmp_path / "a"), budget).data for _ in range(MAX_FILES + 1)]
    assert found == [b"x"] * MAX_FILES + [None]


def test_of_a_command_that_is_gone_that_much_is_told(tmp_path: Path) -> None:
    state = state_of(opening(workspace=str(tmp_path)), started(), intent(1))
    read = read_calls(state, {1: b'{"command":"make"}'})
    (said,) = collector.decide_verdicts(state, read, HOST, tmp_path, Remains(True), Ticking())
    assert said.finding == "unknown" and said.why == findings.ENDING_NOT_KEPT
    (said,) = collector.decide_verdicts(state, read, HOST, tmp_path, Remains(False))
    assert said.why == ""
    (said,) = collector.decide_verdicts(state, read, HOST, tmp_path, Remains(True, [shell("make")]), Ticking())
    assert said.finding == "partial" and said.why == findings.STILL_RAN


RUNS_ON = RunsOn(time=1001.0, call=1, by="hook", why="it runs on")


@pytest.mark.parametrize("held", [None, RUNS_ON, Cut(time=1001.0, call=1, by="hook", why="it was stopped")])
def test_evidence_is_read_for_what_was_cut_and_what_runs_on_as_for_calls_in_flight(
    tmp_path: Path, held: RunsOn | Cut | None
) -> None:
    """I8."""
    file = tmp_path / "a"
    before = told(file, tmp_path)
    file.write_bytes(b"new")
    first = intent(1, "write_file", write(file), "idempotent", before=before)
    state = state_of(opening(workspace=str(tmp_path)), started(), turn(), first, *([held] if held else []))
    (said,) = collector.decide_verdicts(
        state, read_calls(state, {1: write(file)}), HOST, tmp_path, Remains(True), Ticking()
    )
    assert said.finding == "completed"


def test_what_ran_on_is_said_to_have_ended_with_its_run_or_machine(tmp_path: Path) -> None:
    """I8: of a call whose result the agent has, the recovery says that it had not come to its end."""
    data = {1: b'{"command":"make"}'}
    state = state_of(opening(workspace=str(tmp_path)), started(), intent(1), RUNS_ON)

    def why(host: Host, gone: bool, ran: tuple[int, ...] = ()) -> tuple[str, str]:
        (said,) = collector.decide_verdicts(
            state, read_calls(state, data), host, tmp_path, Remains(gone, calls=ran), Ticking()
        )
        return said.finding, said.why

    assert why(HOST, True) == ("unknown", findings.RAN_ON_HERE)
    assert why(HOST, False) == ("unknown", findings.RAN_ON)
    assert why(replace(HOST, boot="another"), False) == ("unknown", findings.RAN_ON_AWAY)
    assert why(HOST, True, ran=(1,)) == ("partial", findings.STILL_RAN), "its processes are known, whatever their words"


def test_leftovers_are_named_by_their_calls() -> None:
    """I8: by the log, by the shell, and what those started; of two that say the same nothing is known."""
    data = {1: b'{"command":"make"}', 2: b'{"command":"./serve.sh"}', 3: b'{"command":"sleep 9"}'}
    runs = replace(RUNS_ON, call=2, pids=(20,))
    state = state_of(opening(), started(), intent(1), intent(2), intent(3), runs)
    found = [
        Leftover(10, 1, shell("make")),
        Leftover(11, 10, "cc x.c"),
        Leftover(20, 1, "serve"),
        Leftover(9, 1, "npm"),
    ]
    left = name_calls([*found, Leftover(21, 20, "worker")], state, read_calls(state, data))
    assert left.named(["cc x.c", "worker", "npm"]) == ["call #1: cc x.c", "call #2: worker", "npm"]
    assert left.calls == {1, 2} and len(left.lines) == 5
    twice = state_of(opening(), started(), intent(1), intent(2))
    assert not name_calls(found[:2], twice, read_calls(twice, {1: data[1], 2: data[1]})).calls


def at(tool: str, input: bytes) -> str | None:
    (step,) = split_call(ReadCall(tool, input), WS) or ()
    return target_file(step)


def test_the_target_of_a_call() -> None:
    assert at("write_file", write("x/../a")) == "/w/shop/a"
    assert at("write_file", write("/etc/a")) == "/etc/a"


@pytest.mark.parametrize("covered", [True, False])
def test_a_tree_that_was_put_back_on_another_machine(tmp_path: Path, covered: bool) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"old")
    data = write("/w/shop/a")
    facts = (Fact(what="file", where="/w/shop/a", value=sha256(b"old")),)
    state = state_of(*START, intent(1, "write_file", data, "idempotent", before=facts))
    (said,) = collector.decide_verdicts(
        state,
        read_calls(state, {1: data}),
        OTHER,
        tmp_path,
        Remains(True),
        Ticking(),
        covers=lambda p: covered and p == str(file),
    )
    assert said.finding == ("not_started" if covered else "unknown")
    assert not covered or said.why.endswith(findings.AS_BEFORE_RESTORED.format(""))
