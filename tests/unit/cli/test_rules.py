"""`wal-agent rules`: by which rule a call is classified, one at a time and in bulk, and what a project did wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.shelf import Run
from wal_agent.cli.rules import MAX_LINE

TOML = """\
[[rules]]
name = "deploy"
match = "./deploy.sh"
class = "mutation"
why = "Deploying twice may create duplicate resources."
verify = "./deploy.sh --status"
on_ambiguity = "ask Eve"

[[rules]]
match = "./deploy.sh --status"
class = "read_only"
"""
GEMINI = """\
# Shop

| Tool / Operation | Idempotent? | Verify With | On Ambiguity |
|---|---|---|---|
| `run_shell_command` → `make build` | No | `ls -l dist` | Retry |
| `mcp__shop__order` | No | look into the shop | Ask operator |
"""
SKILL = """\
---
name: ship_it
---
## Recovery

- **Idempotent:** No. It ships twice.
- **Partial failure risk:** the parcel may be on its way.
"""


def rule(match: str, cls: str, verify: str = "") -> str:
    more = f'verify = "{verify}"\n' if verify else ""
    return f'[[rules]]\nmatch = "{match}"\nclass = "{cls}"\n{more}'


def put(name: str, text: str) -> None:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def checked(run: Run, *args: str) -> dict[str, Any]:
    code, out, err = run("rules", "check", "--json", *args)
    assert (code, err) == (0, "")
    answer: dict[str, Any] = json.loads(out)
    return answer


def brief(answer: dict[str, Any]) -> tuple[str, str, str]:
    return answer["class"], answer["rule"], answer["source"]


@pytest.fixture
def project(run: Run) -> Run:
    """`wal-agent ARGS` in a project with rules in all three forms."""
    put("wal-agent.toml", TOML)
    put("GEMINI.md", GEMINI)
    put("skills/ship/SKILL.md", SKILL)
    return run


# ---- check --------------------------------------------------------------------------------------------------------


def test_a_project_without_rules_goes_by_those_built_in(run: Run) -> None:
    for command, cls in (("git push", "mutation"), ("ls -l", "read_only"), ("./deploy.sh", "unknown")):
        answer = checked(run, command)
        assert (answer["class"], answer["source"]) == (cls, "wal-agent"), command


def test_each_form_of_a_projects_rules(project: Run) -> None:
    told = {
        "class": "mutation",
        "rule": "deploy",
        "why": "Deploying twice may create duplicate resources.",
        "verify": "./deploy.sh --status",
        "done_if": "",
        "ambiguous": "ask Eve",
        "source": "wal-agent.toml",
    }
    builtin = {"verify": "look for what it was to change", "ambiguous": ""}
    name = {"schema": "wal-agent.rules-check/1"}
    assert checked(project, "./deploy.sh staging") == {**name, **told, **builtin, "project": told, "also": []}
    assert brief(checked(project, "make build -j4")) == ("mutation", "make build", "GEMINI.md")
    assert brief(checked(project, "--tool", "mcp__shop__order", "{}")) == ("mutation", "mcp__shop__order", "GEMINI.md")
    for args in (
        ["bash skills/ship/run.sh"],
        ["--tool", "activate_skill", '{"name": "ship_it"}'],
        ["--tool", "ship_it"],
    ):
        assert brief(checked(project, *args)) == ("mutation", "ship_it", "skills/ship/SKILL.md"), args


@pytest.mark.parametrize(
    "wrapped",
    ["sudo {}", "env A=1 {}", "timeout 5 {}", "bash -c '{}'", "ls && {}", "{} | tee log", "(cd x; {})", "echo $({})",
     "if true; then {}; fi", "A=1 {} > out"],
)  # fmt: skip
def test_a_projects_rule_is_found_wherever_its_command_stands(project: Run, wrapped: str) -> None:
    assert brief(checked(project, wrapped.format("./deploy.sh now")))[:2] == ("mutation", "deploy")


@pytest.mark.parametrize(
    "command",
    [
        "cd skills/ship && ./run.sh",
        "cd skills; cd ship; bash run.sh",
        "bash -c 'cd skills/ship; ./run.sh'",
        "(cd skills/ship && ./run.sh)",
    ],
)
def test_a_script_of_a_skill_is_found_in_its_folder(project: Run, command: str) -> None:
    assert brief(checked(project, command)) == ("mutation", "ship_it", "skills/ship/SKILL.md")
    assert brief(checked(project, f"{command}; cd /; ./run.sh"))[0] == "mutation"
    for field in ("dir_path", "directory"):
        input = json.dumps({"command": "./run.sh", field: "skills/ship"})
        assert brief(checked(project, "--tool", "run_shell_command", input))[1] == "ship_it"


def test_where_a_nested_shell_went_is_not_where_the_text_goes_on(project: Run) -> None:
    assert checked(project, "bash -c 'cd skills/ship'; ./run.sh")["rule"] != "ship_it"


def test_a_rule_for_the_shell_itself_is_for_what_no_other_rule_speaks_of(run: Run) -> None:
    put("AGENTS.md", "| Tool | Idempotent? |\n|-|-|\n| `run_shell_command` | no |\n| `make build` | unknown |\n")
    assert brief(checked(run, "make build")) == ("unknown", "make build", "AGENTS.md")
    assert brief(checked(run, "ls")) == ("mutation", "run_shell_command", "AGENTS.md")


def test_the_worst_part_of_a_command_counts(project: Run) -> None:
    assert brief(checked(project, "make test; git push"))[0] == "mutation"
    assert brief(checked(project, "make build; ls"))[:2] == ("mutation", "make build")
    assert brief(checked(project, "make test; ./unknown"))[0] == "unknown"


@pytest.mark.parametrize(
    ("command", "cls", "rule"),
    [
        ("git push", "mutation", "git.push"),
        ("git commit -m x && ls", "mutation", "git.commit"),
        ("rm x", "mutation", "rm"),
        ("./deploy.sh", "unknown", "script"),
        ("sudo ./deploy.sh", "unknown", "script"),
    ],
)
def test_a_milder_class_is_shown_as_the_projects_word_and_changes_nothing(
    run: Run, command: str, cls: str, rule: str
) -> None:
    put(
        "AGENTS.md",
        "| Tool | Idempotent? |\n|-|-|\n"
        + "".join(f"| `{name}` | read-only |\n" for name in ("git push", "git commit", "rm", "./deploy.sh")),
    )
    answer = checked(run, command)
    assert brief(answer) == (cls, rule, "wal-agent")
    shown = "says read_only; a project can only make a class worse" in run("rules", "check", command)[1]
    assert shown == (answer["project"] is not None)


def test_what_people_read(project: Run) -> None:
    code, out, err = project("rules", "check", "./deploy.sh staging")
    assert (code, err) == (0, "")
    rows = out.splitlines()
    assert rows[:4] == [
        'mutation, by this project\'s rule "deploy" (wal-agent.toml)',
        "  why        Deploying twice may create duplicate resources.",
        "  verify     ./deploy.sh --status",
        "  in doubt   ask Eve",
    ]
    assert rows[4].startswith("  built in   unknown, by rule ")
    code, out, err = project("rules", "check", "ls -l")
    assert out.startswith("read_only, by rule ")
    put("wal-agent.toml", TOML.replace("\nverify", '\ndone_if = "deployed  *"\nverify', 1))
    assert "  done if    deployed *" in project("rules", "check", "./deploy.sh staging")[1].splitlines()


def test_texts_of_a_project_are_shown_without_secrets_and_controls(run: Run) -> None:
    secret = "ghp_" + "a1B2" * 9
    put("GEMINI.md", f"| Tool | Idempotent? | Verify |\n|-|-|-|\n| `./x` | no | look \x1b[2J with {secret} |\n")
    _, out, _ = run("rules", "check", "./x")
    assert "verify     look ?[2J with " in out
    assert secret not in out


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ([], "Name one command, or one tool with its input, or a batch."),
        (["ls", "--batch", "x"], "Name one command, or one tool with its input, or a batch."),
        (["--tool", "write_file", "ls"], "The input of a tool is one JSON object."),
        (["--tool", "write_file", '{"a": 1, "a": 2}'], "The input of a tool is one JSON object."),
        (["--batch", "nowhere"], "nowhere cannot be read: No such file or directory."),
        (["--batch", "."], ". cannot be read: Is a directory."),
    ],
)
def test_usage_errors(run: Run, args: list[str], says: str) -> None:
    code, out, err = run("rules", "check", *args)
    assert (code, out) == (64, "")
    assert says in err


def test_a_wrong_wal_agent_toml_is_an_error_of_check(run: Run) -> None:
    put("wal-agent.toml", '[[rules]]\nmatch = "x"\n')
    code, out, err = run("rules", "check", "ls")
    assert (code, out) == (78, "")
    assert "rule 1 (line 1) has no class." in err


def test_alone_it_prints_help(run: Run) -> None:
    code, out, err = run("rules")
    assert (code, out) == (64, "")
    assert "check" in err and "lint" in err


# ---- batch --------------------------------------------------------------------------------------------------------


def test_a_batch_answers_line_by_line(project: Run) -> None:
    lines = [
        '{"cmd": "./deploy.sh x"}',
        '{"tool": "ship_it", "input": {}}',
        "",
        "[1]",
        '{"cmd": "ls", "more": 1}',
        '{"tool": "ship_it", "input": "x"}',
        '{"cmd": 3}',
        '{"cmd": "ls", "cmd": "rm x"}',
        json.dumps({"cmd": "x" * MAX_LINE}),
        '{"cmd": "ls',
        '{"cmd": "ls"}',
    ]
    put("calls", "\n".join(lines))  # the last one without its newline
    code, out, err = project("rules", "check", "--batch", "calls")
    assert (code, err) == (64, "")
    answers = [json.loads(line) for line in out.splitlines()]
    assert len(answers) == len(lines)
    assert [n for n, answer in enumerate(answers) if "error" in answer] == list(range(2, 10))
    assert answers[8] == {"schema": "wal-agent.rules-check-error/1", "error": "the line is longer than 1 MiB"}
    assert brief(answers[0]) == ("mutation", "deploy", "wal-agent.toml")
    assert brief(answers[1]) == ("mutation", "ship_it", "skills/ship/SKILL.md")
    assert answers[10]["class"] == "read_only"


def test_a_batch_says_the_same_as_one_by_one(project: Run) -> None:
    commands = ["ls", "git push", "make build", "./deploy.sh", "rm -rf x", "echo $(", "bash skills/ship/x"]
    put("calls", "".join(json.dumps({"cmd": c}) + "\n" for c in commands))
    code, out, _ = project("rules", "check", "--batch", "calls")
    assert code == 0
    assert [json.loads(line) for line in out.splitlines()] == [checked(project, c) for c in commands]


def real(folder: Path, *args: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """The command itself, as a process of its own."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("WAL_AGENT_", "XDG_"))}
    command = [sys.executable, "-m", "wal_agent", "rules", *args]
    return subprocess.run(command, cwd=folder, env=env, input=stdin, capture_output=True, timeout=60, check=False)


def test_the_command_itself_reads_stdin_and_needs_neither_bucket_nor_home(tmp_path: Path) -> None:
    (tmp_path / "AGENTS.md").write_text(GEMINI)
    done = real(tmp_path, "check", "--batch", "-", stdin=b'{"cmd": "make build"}\n{"cmd": "ls"}\n' * 500)
    assert (done.returncode, done.stderr) == (0, b"")
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [brief(a)[0] for a in answers] == ["mutation", "read_only"] * 500
    assert sorted(p.name for p in tmp_path.iterdir()) == ["AGENTS.md"]


def test_it_imports_no_cloud_library(tmp_path: Path) -> None:
    """What such a start would cost is most of the time that a thousand answers may take."""
    script = (
        "import sys; from wal_agent.cli.main import main; sys.argv = ['wal-agent', 'rules', 'check', 'ls']\n"
        "try: main()\n"
        "except SystemExit as e: assert e.code == 0\n"
        "heavy = ('boto3', 'google.cloud.storage', 'jinja2', 'cryptography', 'watchdog')\n"
        "print([m for m in heavy if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, check=True, timeout=60)
    assert done.stdout.splitlines()[-1] == b"[]"


# ---- lint ---------------------------------------------------------------------------------------------------------


def test_lint_of_right_rules(run: Run) -> None:
    put(
        "wal-agent.toml",
        TOML.replace('match = "./deploy.sh"\n', 'match = "./deploy.sh *"\n').replace("--status", "status"),
    )
    put("wal-agent.toml", rule("make build", "idempotent", "ls -l dist"))
    put("AGENTS.md", GEMINI.replace("make build", "make test"))
    put("skills/ship/SKILL.md", SKILL)
    assert run("rules", "lint") == (
        0,
        "4 rules of this project in force (1 of wal-agent.toml, 2 of AGENTS.md, 1 of skills/ship/SKILL.md).\n",
        "",
    )


def test_lint_without_rules(run: Run) -> None:
    assert run("rules", "lint") == (0, "0 rules of this project in force.\n", "")


def test_lint_tells_problems_with_their_places(run: Run) -> None:
    put("wal-agent.toml", "job = 'x'\n[[rules]]\nmatch = 'x'\n")
    put("GEMINI.md", GEMINI + "| `x` | perhaps | | |\n")
    put("skills/ship/SKILL.md", "# Recovery\nCall Bob.\n")
    code, out, err = run("rules", "lint")
    assert (code, err) == (78, "")
    assert out.splitlines() == [
        f"wal-agent.toml: {Path.cwd()}/wal-agent.toml, rule 1 (line 2) has no class. "
        "Allowed: read_only, idempotent, mutation, unknown.",
        'GEMINI.md:7: Idempotent? of "`x`" is "perhaps"; it can be yes, no, read-only, partial or unknown.',
        "skills/ship/SKILL.md:1: this Recovery section has no field (Idempotent, Verify completion, "
        "Partial failure risk).",
        "2 rules of this project in force (2 of GEMINI.md).",
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            rule("./deploy.sh", "mutation") + rule("./deploy.sh now", "read_only"),
            ['4: warning: rule "./deploy.sh now" never wins: rule "./deploy.sh" (wal-agent.toml:1) comes first.'],
        ),
        (rule("A=1 make", "mutation"), ['1: warning: rule "A=1 make" can never hold: ']),
        (
            rule("git push", "read_only"),
            ['1: warning: rule "git push" says read_only of a known mutation (it '],
        ),
        (
            '[[rules]]\ntool = "save_memory"\nclass = "read_only"\n',
            ['1: warning: rule "save_memory" says read_only of a known mutation (it '],
        ),
        (
            rule("./x", "mutation", "first `git status; ls`, then `git push`"),
            ['1: warning: rule "./x": its verification `git push` is mutation, not read_only (it '],
        ),
        (
            rule("./x", "mutation", "./x --status"),
            ['1: warning: rule "./x": its verification `./x --status` is unknown, not read_only (it '],
        ),
        (
            rule("./x", "mutation", "git push origin"),
            ['1: warning: rule "./x": its verification `git push origin` is mutation, not read_only (it '],
        ),
        (
            rule("./x", "mutation", "./s"),
            ['1: warning: rule "./x": its verification `./s` is unknown, not read_only (it '],
        ),
        (
            rule("./s", "read_only") + rule("./x", "mutation", "./s"),
            ['4: warning: rule "./x": its verification `./s` is unknown, not read_only (it '],
        ),
        (
            rule("git push", "idempotent"),
            ['1: warning: rule "git push" says idempotent of a known mutation (it '],
        ),
        (rule("./y", "mutation", "git log -1") + rule("./z", "idempotent", "see the page, then ask Bob"), []),
    ],
)
def test_lint_warns_of_rules_that_do_not_do_what_they_say(run: Run, text: str, says: list[str]) -> None:
    put("wal-agent.toml", text)
    code, out, err = run("rules", "lint")
    assert (code, err) == (0, "")
    warned = [row for row in out.splitlines() if "warning: " in row]
    assert len(warned) == len(says), out
    for row, begin in zip(warned, says, strict=True):
        assert row.startswith(f"wal-agent.toml:{begin}")


def test_lint_warns_of_a_rule_of_another_file_that_comes_first(run: Run) -> None:
    put("wal-agent.toml", '[[rules]]\nmatch = "make"\nclass = "mutation"\n')
    put("GEMINI.md", GEMINI)
    _, out, _ = run("rules", "lint")
    assert 'GEMINI.md:5: warning: rule "make build" never wins: rule "make" (wal-agent.toml:1) comes first.' in out
