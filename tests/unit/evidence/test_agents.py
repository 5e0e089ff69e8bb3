"""Evidence for the calls of each agent, in the shapes that their hooks tell: only of fields that are exactly known, and
of files that the call surely meant."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.faults.evidence.stage import Unhurried
from tests.unit.recovery.cases import HOST, OTHER, end, intent, opening, started, state_of, turn
from wal_agent.calls.call import ReadCall
from wal_agent.calls.reading import read_calls
from wal_agent.calls.rules.table import load_rules
from wal_agent.evidence import collector
from wal_agent.evidence.collector import collect_facts, find_running_calls, split_call
from wal_agent.evidence.model import folder_fact
from wal_agent.records import AnyRecord, Verdict

Fields = dict[str, object]


def encoded(fields: Mapping[str, object]) -> bytes:
    return json.dumps(fields).encode()


class Job:
    """One call in a folder: begun, then judged."""

    def __init__(self, workspace: Path, tool: str, fields: Mapping[str, object], cwd: str = "") -> None:
        self.workspace, self.tool, self.data = workspace, tool, encoded(fields)
        self.facts = collect_facts(ReadCall(tool, self.data, cwd), workspace, Unhurried(), work=lambda: 0.0)

    def now(self, here: Path | None = None, covered: bool = False) -> Verdict:
        call = intent(1, self.tool, self.data, before=self.facts)
        state = state_of(opening(workspace=str(self.workspace)), started(), turn(), call)
        host, folder = (HOST, self.workspace) if here is None else (OTHER, here)
        read = read_calls(state, {1: self.data})
        (said,) = collector.decide_verdicts(
            state, read, host, folder, collector.Remains(True), Unhurried(), covers=lambda path: covered
        )
        return said


# ---- file tools ----------------------------------------------------------------------------------------------------

WRITES: list[
    tuple[str, str, str, Fields, bool]
] = [  # tool, path, content, others that hooks tell, whether the old line ends may stay
    ("write_file", "file_path", "content", {}, True),
    ("Write", "file_path", "content", {}, False),
    ("write", "filePath", "content", {}, False),
    ("write", "path", "content", {}, False),
    ("create", "path", "file_text", {}, False),
]
EDITS: list[tuple[str, str, str, str, Fields, bool]] = [  # ..., whether an empty old text makes a new file
    ("replace", "file_path", "old_string", "new_string", {"instruction": "do", "allow_multiple": True}, True),
    ("Edit", "file_path", "old_string", "new_string", {"replace_all": False}, True),
    ("edit", "file_path", "old_string", "new_string", {"replace_all": True}, True),
    ("edit", "filePath", "oldString", "newString", {"replaceAll": True}, True),
    ("edit", "path", "old_str", "new_str", {}, False),
]


@pytest.mark.parametrize(("tool", "path", "content", "more", "ends"), WRITES)
def test_a_written_file(tmp_path: Path, tool: str, path: str, content: str, more: Fields, ends: bool) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"old\r\n")
    job = Job(tmp_path, tool, {path: str(file), content: "a\nb\n", **more})
    assert job.now().finding == "not_started"
    file.write_bytes(b"a\r\nb\r\n")
    assert job.now().finding == ("completed" if ends else "unknown")
    file.write_bytes(b"a\n")
    assert job.now().finding == "partial"
    file.write_bytes(b"a\nb\n")
    assert job.now().finding == "completed"


@pytest.mark.parametrize(("tool", "path", "old", "new", "more", "creates"), EDITS)
def test_an_edited_file(tmp_path: Path, tool: str, path: str, old: str, new: str, more: Fields, creates: bool) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"one\ntwo\n")
    job = Job(tmp_path, tool, {path: str(file), old: "two", new: "2", **more})
    assert job.now().finding == "not_started"
    file.write_bytes(b"one\n2\n")
    assert job.now().finding == "completed"
    file.write_bytes(b"one\n2 \n")
    assert job.now().finding == "unknown"
    job = Job(tmp_path, tool, {path: str(tmp_path / "new"), old: "", new: "2", **more})
    assert job.facts
    (tmp_path / "new").write_bytes(b"2")
    assert job.now().finding == ("completed" if creates else "unknown")


SHAPES: list[tuple[str, Fields]] = [
    *((tool, {path: "/w/a", content: "x", **more}) for tool, path, content, more, _ in WRITES),
    *((tool, {path: "/w/a", old: "x", new: "y", **more}) for tool, path, old, new, more, _ in EDITS),
]


@pytest.mark.parametrize(("tool", "fields"), SHAPES)
def test_other_fields_than_the_tools_own_give_nothing(tool: str, fields: Fields) -> None:
    assert split_call(ReadCall(tool, encoded(fields)), Path("/w"))
    assert split_call(ReadCall(tool, encoded({**fields, "new_field": None})), Path("/w")) is None
    needed = [k for k in fields if all(k not in f.ignore for f in load_rules().files[tool])]
    for name in needed:
        assert split_call(ReadCall(tool, encoded({k: v for k, v in fields.items() if k != name})), Path("/w")) is None
        assert split_call(ReadCall(tool, encoded({**fields, name: 7})), Path("/w")) is None


@pytest.mark.parametrize(
    ("tool", "fields"),
    [
        ("edit", {"path": "/w/a", "edits": [{"oldText": "a", "newText": "b"}]}),
        ("MultiEdit", {"file_path": "/w/a", "edits": []}),
        ("NotebookEdit", {"notebook_path": "/w/a", "new_source": "x"}),
        ("Write", {"filePath": "/w/a", "content": "x"}),
        ("write", {"file_path": "/w/a", "content": "x"}),
        ("write", {"path": "/w/a", "filePath": "/w/a", "content": "x"}),
        ("Read", {"file_path": "/w/a"}),
    ],
)
def test_calls_of_which_nothing_is_told(tmp_path: Path, tool: str, fields: Fields) -> None:
    assert (
        split_call(ReadCall(tool, encoded(fields)), tmp_path) is None
        and collect_facts(ReadCall(tool, encoded(fields)), tmp_path) == ()
    )


@pytest.mark.parametrize("named", ["~/a", "@a", "a\u00a0b", "a\tb", "/a\u2028", "a%20b", " a", "a/"])
@pytest.mark.parametrize(("tool", "fields"), SHAPES[:5])
def test_paths_that_one_agent_reads_in_another_way(tmp_path: Path, tool: str, fields: Fields, named: str) -> None:
    path = next(k for k, v in fields.items() if v == "/w/a")
    assert collect_facts(ReadCall(tool, encoded({**fields, path: named})), tmp_path) == ()


# ---- patches -------------------------------------------------------------------------------------------------------

PATCHES = ("command", "patchText", "input")  # Codex, OpenCode, Copilot CLI


def patch(*parts: str) -> str:
    return "\n".join(("*** Begin Patch", *parts, "*** End Patch"))


@pytest.mark.parametrize("field", PATCHES)
def test_a_patch_of_new_files(tmp_path: Path, field: str) -> None:
    text = patch(f"*** Add File: {tmp_path}/a", "+one", "+ two", "+", f"*** Add File: {tmp_path}/b c", "+é")
    job = Job(tmp_path, "apply_patch", {field: text})
    assert [f.value for f in job.facts] == ["absent"] * 2 and job.now().finding == "not_started"
    (tmp_path / "a").write_text("one\n two\n\n")
    assert job.now().finding == "partial"
    (tmp_path / "b c").write_text("é\n")
    assert job.now().finding == "completed"
    (tmp_path / "b c").write_text("é")
    assert job.now().finding != "completed"


def test_a_relative_path_of_a_patch_is_sure_where_its_folder_is_told(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    fields = {"command": patch("*** Add File: a", "+one")}
    assert Job(tmp_path, "apply_patch", fields).now().finding == "unknown"
    job = Job(tmp_path, "apply_patch", fields, cwd=str(tmp_path / "sub"))
    assert job.now().finding == "not_started"
    (tmp_path / "a").write_text("one\n")
    assert job.now().finding == "not_started"
    (tmp_path / "sub/a").write_text("one\n")
    assert job.now().finding == "completed"


@pytest.mark.parametrize(
    "text",
    [
        *("", "x", patch(), patch("+a"), patch("*** Add File: ", "+a"), patch("*** Delete File: a")),
        *(patch("*** Update File: a", "@@", "-x", "+y"), patch("*** Add File: a", "+x", "*** Update File: b", "+y")),
        *(patch("*** Add File: a", "+x", "", "+y"), patch("*** Add File: a", "+x", "*** End of File")),
        *(patch("*** Add File: a", "+x", "-y"), patch("*** Add File: a", "+x\r"), patch("*** Add File: a\r", "+x")),
        *(" " + patch("*** Add File: a", "+x"), patch("*** Add File: a", "+x") + " "),
        *(patch("*** Add File: a", "+x", "*** Move to: b"), patch(*(f"*** Add File: {n}" for n in range(17)))),
    ],
)
def test_any_other_patch_gives_nothing(tmp_path: Path, text: str) -> None:
    found = split_call(ReadCall("apply_patch", encoded({"command": text})), tmp_path) or ()
    assert all(collect_facts(ReadCall("apply_patch", encoded({"command": text})), tmp_path) == () for _ in found)
    assert text.endswith("\r\n+x\n*** End Patch") or not found


def test_a_patch_that_adds_one_file_twice_tells_nothing(tmp_path: Path) -> None:
    text = patch(f"*** Add File: {tmp_path}/a", "+x", f"*** Add File: {tmp_path}/a", "+y")
    job = Job(tmp_path, "apply_patch", {"command": text})
    assert job.facts == () and job.now().finding == "unknown"


@given(st.text(alphabet="*+- \nAddFile:Bgn\r", max_size=80))
def test_any_patch(text: str) -> None:
    split_call(ReadCall("apply_patch", encoded({"input": f"*** Begin Patch\n{text}\n*** End Patch"})), Path("/w"))


# ---- where a command runs ------------------------------------------------------------------------------------------


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    (tmp_path / "sub").mkdir()
    (tmp_path / "x").write_text("x")
    (tmp_path / "sub/x").write_text("x")
    return tmp_path


def removal(shop: Path, cwd: str = "") -> Job:
    return Job(shop, "Bash", {"command": "rm x"}, cwd)


def test_a_shell_that_wanders_is_believed_only_where_it_says_where_it_stands(shop: Path) -> None:
    assert removal(shop).facts == () and removal(shop).now().finding == "unknown"
    assert removal(shop, "sub").now().finding == removal(shop, f"{shop}/../sub").now().finding == "unknown"
    job = removal(shop, str(shop / "sub"))
    assert job.now().finding == "not_started"
    (shop / "x").unlink()
    assert job.now().finding == "not_started"
    (shop / "sub/x").unlink()
    assert job.now().finding == "completed"


def test_a_command_that_says_its_folder_itself_needs_no_word(shop: Path) -> None:
    for command in (f"cd {shop}/sub && rm x", f"cd {shop}; cd sub; rm x"):
        assert Job(shop, "Bash", {"command": command}).now().finding == "not_started"
    for command in ("cd sub && rm x", f"true; cd {shop}/sub; rm x", f"rm {shop}/sub/x", "cd ~; rm x", f"cd {shop} a"):
        assert Job(shop, "Bash", {"command": command}).now().finding == "unknown"


def test_the_folder_moves_with_the_workspace(shop: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    there = tmp_path_factory.mktemp("there")
    (there / "sub").mkdir()
    (there / "sub/x").write_text("x")
    job = Job(shop, "Write", {"file_path": "y", "content": "new"}, str(shop / "sub"))
    (there / "sub/y").write_text("new")
    said = job.now(there)
    assert said.finding == "completed" and f"{there}/sub/y" in said.why


def test_what_ran_in_another_folder_changes_another_file(shop: Path) -> None:
    """A call beside this one is known to change other things only where its folder is known."""
    mine, other = encoded({"command": "rm x"}), encoded({"command": "touch y"})
    sub = str(shop / "sub")

    def finding(cwd: str) -> str:
        facts = [
            collect_facts(ReadCall("Bash", data, cwd), shop, Unhurried(), work=lambda: 0.0) for data in (mine, other)
        ]
        made = [intent(n, "Bash", d, before=f) for n, (d, f) in enumerate(zip((mine, other), facts, strict=True), 1)]
        state = state_of(opening(workspace=str(shop)), started(), turn(), *made)
        return collector.decide_verdicts(
            state, read_calls(state, {1: mine, 2: other}), HOST, shop, collector.Remains(True), Unhurried()
        )[0].finding

    assert finding(sub) == "not_started" and finding("") == "unknown"


@pytest.mark.parametrize("cwd", ["", "a", "/a/../b", "/a/", "//a", "/a\0", "/\ud800", "/" + "a" * 5000])
def test_a_word_that_is_no_plain_folder_is_no_fact(cwd: str) -> None:
    assert folder_fact(cwd) == ()


@pytest.mark.parametrize(
    ("tool", "more"),
    [
        *(("bash", {"workdir": "sub"}), ("bash", {"timeout": 5, "workdir": "./sub"})),
        *(("bash", {"workdir": "sub", "mode": "sync", "description": "x", "initial_wait": 30}),),
        ("run_shell_command", {"directory": "sub", "is_background": False, "timeout": 5}),
    ],
)
def test_the_folder_that_a_field_says(shop: Path, tool: str, more: Fields) -> None:
    job = Job(shop, tool, {"command": "rm x", **more})
    assert job.now().finding == "not_started"
    (shop / "sub/x").unlink()
    assert job.now().finding == "completed"


@pytest.mark.parametrize(
    ("tool", "more"),
    [
        *(
            ("bash", {"mode": "async"}),
            ("bash", {"shellId": "1"}),
            ("bash", {"workdir": "~"}),
            ("bash", {"cwd": "sub"}),
        ),
        *(("bash", {"dir_path": "sub"}), ("run_shell_command", {"workdir": "sub"})),
        *(("Bash", {"run_in_background": True}), ("Bash", {"workdir": "sub"})),
    ],
)
def test_fields_that_may_change_where_or_how_it_runs(shop: Path, tool: str, more: Fields) -> None:
    assert split_call(ReadCall(tool, encoded({"command": "rm x"})), shop, cwd=shop)
    assert split_call(ReadCall(tool, encoded({"command": "rm x", **more})), shop, cwd=shop) is None


def test_a_folder_in_the_input_beside_the_agents_word(shop: Path) -> None:
    assert split_call(ReadCall("exec_command", encoded({"cmd": "rm x"})), shop, cwd=shop)
    assert split_call(ReadCall("exec_command", encoded({"cmd": "rm x", "workdir": "sub"})), shop, cwd=shop) is None


# ---- what still runs -----------------------------------------------------------------------------------------------


ALIASES = "{ \\builtin unalias -- 'which'; \\builtin unset -f -- 'which'; } >/dev/null 2>&1 || true && "


def claude(command: str, file: str = "6b35", stdin: bool = True, end: str = "", before: str = "") -> str:
    """As it was measured; a command with a redirection of its input gets none. `before`: what the user's shell has."""
    word = shlex.quote(command)  # none of one plain word
    return (
        "/bin/bash -c source /root/.claude/shell-snapshots/snapshot-bash-1795338354565-xhcbid.sh 2>/dev/null || true "
        f"&& shopt -u extglob 2>/dev/null || true && {before}eval {word}{' < /dev/null' if stdin else ''} "
        f"&& pwd -P >| /tmp/claude-{file}-cwd{end}"
    )


PLAIN = {
    "codex": "/bin/bash -c ",
    "opencode": "/usr/bin/bash -c ",
    "copilot": "/bin/bash --norc --noprofile -c ",
    "pi": "/bin/bash -c ",
    "qwen": "bash -c ",
    "kimi": "/bin/bash -c cd '/w/my shop' && ",
}
TOOL = {"codex": "Bash", "kimi": "Bash", "qwen": "run_shell_command", "claude": "Bash"}
MANY = "sleep 3; echo 'it' \"$HOME\" | ( cat; cat )\necho two"


def running(agent: str, lines: list[str], *calls: AnyRecord) -> frozenset[int]:
    state = state_of(opening(agent=agent), started(), turn(), *calls)
    intents = [*(o.intent for o in state.open), *(e.intent for e in state.unsettled)]
    inputs = {i.call: i.input.data or b"" for i in intents}
    return find_running_calls(agent, state, read_calls(state, inputs), lines)


def call(agent: str, command: str, n: int = 1, tool: str = "") -> AnyRecord:
    return intent(n, tool or TOOL.get(agent, "bash"), encoded({"command": command}))


def test_a_shell_of_claude_code() -> None:
    assert running("claude", [claude(f"  {MANY} \n")], call("claude", f"  {MANY} \n")) == {1}
    assert running("claude", [claude(MANY, before=ALIASES)], call("claude", MANY)) == {1}
    assert running("claude", [claude("sleep 3 < a", stdin=False)], call("claude", "sleep 3 < a")) == {1}
    two = [call("claude", "make", n) for n in (1, 2)]
    assert running("claude", [claude("make")] * 2, *two) == frozenset()  # one and its fork
    assert running("claude", [claude("make"), claude("make", "1bbd")], *two) == {1, 2}
    # one that has ended may have left its shell behind
    assert running("claude", [claude("make")], *two, end(2)) == frozenset()


@pytest.mark.parametrize(
    "line",
    [
        *("bash -c ./deploy.sh", claude("./deploy.sh --watch"), claude("cd x; ./deploy.sh"), claude("'./deploy.sh'")),
        *(claude("./deploy.sh", end="; more"), "vi " + claude("./deploy.sh")),
        claude("./deploy.sh").replace("eval ", "eval x "),
        claude("./deploy.sh ").replace("eval '", "eval ''x '"),
    ],
)
def test_what_only_names_the_command_of_claude_code(line: str) -> None:
    assert running("claude", [line], call("claude", "./deploy.sh")) == frozenset()


@pytest.mark.parametrize("agent", PLAIN)
def test_a_plain_shell(agent: str) -> None:
    line = PLAIN[agent] + MANY
    assert running(agent, [line, line, "sleep 3"], call(agent, MANY)) == {1}
    assert running(agent, ["sleep 3"], call(agent, "sleep 3")) == frozenset()  # its shell has become it
    assert running(agent, [f"{line} ; more", f"vi {line}", MANY], call(agent, MANY)) == frozenset()


@pytest.mark.parametrize("agent", PLAIN)
def test_a_plain_shell_that_may_be_the_work_of_another_call(agent: str) -> None:
    line, mine = PLAIN[agent] + MANY, call(agent, MANY)
    assert running(agent, [line], mine, intent(2, "read_file", b"{}", "read_only")) == {1}
    assert running(agent, [line], mine, intent(2, "Write", b"{}", "idempotent")) == {1}
    assert running(agent, [line], mine, call(agent, "make", 2)) == frozenset()
    assert running(agent, [line], mine, call(agent, "git status", 2)) == frozenset()
    reads = encoded({"command": "git status"})
    assert running(agent, [line], mine, intent(2, TOOL.get(agent, "bash"), reads, "read_only")) == frozenset()
    assert running(agent, [line], mine, intent(2, "mcp_x", b"{}")) == frozenset()
    assert running(agent, [line, line], mine, call(agent, MANY, 2)) == frozenset()
    # one that has ended may have left its shell behind, in the background
    assert running(agent, [line], call(agent, MANY, 2), end(2), mine) == frozenset()


def test_one_agents_shell_is_not_looked_for_in_anothers_run() -> None:
    assert running("gemini", ["bash -c " + MANY], call("qwen", MANY)) == frozenset()
    assert running("claude", ["/bin/bash -c " + MANY], call("claude", MANY)) == frozenset()
    assert running("codex", [claude("make")], call("codex", "make")) == frozenset()
