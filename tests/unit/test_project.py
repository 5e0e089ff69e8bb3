"""The project's own promises: what a wheel holds, what a commit may not, what make says, what CI runs."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import get_args

import pytest

from scripts.build_hooks import compile_client, is_static
from tests.tiers import once
from wal_agent.agents import AGENTS, hook_line, rehearsal_of
from wal_agent.extras import Extra

ROOT = Path(__file__).resolve().parents[2]

# In pieces, so that this file does not find itself.
ADDRESSES = re.compile(
    r"py" r"pi\.org|python" r"hosted\.org|registry\.(npm" r"js|yarn" r"pkg)|npm" r"mirror|deb\.deb" r"ian\.org"
    r"|(?<![\w.})-])/wo" r"rk/"
)  # fmt: skip


def committed() -> list[Path]:
    """Files that are in the index or will be (untracked, not ignored)."""
    done = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    return [path for name in done.stdout.decode().split("\0") if name and (path := ROOT / name).is_file()]


def pins() -> dict[str, list[str]]:
    return {
        path.name: [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
        for path in sorted((ROOT / "requirements").glob("*.txt"))
        if path.name != "release.txt"
    }


def release() -> dict[str, set[str]]:
    """The requirements of the release install, each with its hashes."""
    text = (ROOT / "requirements" / "release.txt").read_text().replace("\\\n", "")
    lines = [line.split() for line in text.splitlines() if line and not line.startswith("#")]
    return {requirement: set(hashes) for requirement, *hashes in lines}


# ---- what is committed --------------------------------------------------------------------------------------------


def test_no_file_holds_the_address_of_a_registry_or_a_path_of_the_machine_it_was_made_on() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {match.group()}"
        for path in committed()
        if (match := ADDRESSES.search(path.read_bytes().decode(errors="replace")))
    ]
    assert found == []


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("https://py" "pi.org/simple", True),
        ("https://registry.npm" "js.org/x/-/x-1.tgz", True),
        ("see /wo" "rk/main/x", True),
        ("(/wo" "rk/x)", True),
        ("/home/me/wo" "rk/x", False),
        ("{tmp}/wo" "rk/x", False),
        ("of framewo" "rk/s", False),
    ],
)  # fmt: skip
def test_the_scan_sees_what_it_should(text: str, is_one: bool) -> None:
    assert bool(ADDRESSES.search(text)) is is_one


def test_no_file_holds_the_marks_of_a_merge() -> None:
    marks = re.compile(rb"^(<{7}|>{7}) ", re.M)
    assert not [str(path) for path in committed() if marks.search(path.read_bytes())]


def test_no_lock_file_is_committed() -> None:
    names = {"package-lock.json", "npm-shrinkwrap.json", "uv.lock", "poetry.lock", "yarn.lock"}
    assert [path for path in committed() if path.name in names] == []


def test_what_make_makes_is_ignored() -> None:
    made = [
        ".venv/x",
        ".tools/x",
        "dist/x",
        "wal_agent/_shipped/hooks/client",
        "wal_agent/__pycache__/x",
        ".hypothesis/x",
        ".mypy_cache/x",
    ]
    done = subprocess.run(["git", "check-ignore", *made], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.split() == made


# ---- versions -----------------------------------------------------------------------------------------------------


def test_every_requirement_is_pinned_and_holds_no_address() -> None:
    lines = [line for lines in pins().values() for line in lines if not line.startswith("-r ")]
    assert [line for line in lines if not re.fullmatch(r"[A-Za-z0-9_.-]+==[0-9][0-9A-Za-z.]*", line)] == []
    ours = [line for name, lines in pins().items() if name != "servers.txt" for line in lines]  # an environment apart
    names = [line.partition("==")[0].lower() for line in ours if "==" in line]
    assert len(names) == len(set(names))


def test_every_dependency_is_pinned() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    texts = [*project["project"]["dependencies"], *(text for each in extras.values() for text in each)]
    wanted = {re.split(r"[^A-Za-z0-9.-]", text)[0] for text in texts} - {"wal-agent"}
    pinned = {line.partition("==")[0].lower() for name in ("runtime.txt", "dev.txt") for line in pins()[name]}
    assert [name for name in wanted if name not in pinned] == []


def test_the_base_installs_no_heavy_package_and_each_extra_can_be_named() -> None:
    """24 MB of zstandard, 23 of botocore, 16 of cryptography and 13 of apprise were everybody's."""
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    base = {re.split(r"[^A-Za-z0-9.-]", text)[0] for text in project["dependencies"]}
    assert not base & {"zstandard", "boto3", "google-cloud-storage", "cryptography", "apprise", "opentelemetry-sdk"}
    extras = set(project["optional-dependencies"])
    assert extras == {*get_args(Extra), "all"}
    assert project["optional-dependencies"]["all"] == [f"wal-agent[{','.join(get_args(Extra))}]"]


def test_the_release_install_names_exactly_these_versions_with_their_hashes() -> None:
    """`make pins` makes it; `make` itself installs from it, so CI finds a hash that is wrong or missing."""

    def plain(requirement: str) -> str:
        name, _, version = requirement.partition("==")
        return f"{re.sub(r'[-_.]+', '-', name).lower()}=={version}"

    pinned = {plain(line) for name in ("runtime.txt", "build.txt") for line in pins()[name]}
    found = release()
    assert {plain(requirement) for requirement in found} == pinned
    for requirement, hashes in found.items():
        assert hashes, requirement
        assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", each) for each in hashes), requirement


def test_the_hashes_are_of_all_files_of_a_version() -> None:
    """A release is installed on other platforms than the one that made the list."""
    compiled = {
        name: len(hashes) for name, hashes in release().items() if name.startswith(("msgspec", "backports-zstd"))
    }
    assert len(compiled) == 2 and min(compiled.values()) > 20


def test_the_installed_clis_are_the_tested_ones() -> None:
    clis = json.loads((ROOT / "tests" / "agents.json").read_text())
    tested = {agent.name: (agent.tested, agent.also) for agent in AGENTS.values() if rehearsal_of(agent) is not None}
    assert {name: (cli["version"], tuple(cli.get("also", ()))) for name, cli in clis.items()} == tested


# ---- types --------------------------------------------------------------------------------------------------------


def literal_comparisons(source: str) -> list[int]:
    """Lines that compare a parameter of type Sequence, or a slice of it, with a list or tuple literal."""
    found: list[int] = []
    for function in ast.walk(ast.parse(source)):
        if not isinstance(function, ast.FunctionDef):
            continue
        args = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
        names = {a.arg for a in args if a.annotation and ast.unparse(a.annotation).startswith("Sequence[")}
        for node in ast.walk(function):
            if not isinstance(node, ast.Compare):
                continue
            sides = [node.left, *node.comparators]
            sliced = [s.value if isinstance(s, ast.Subscript) and isinstance(s.slice, ast.Slice) else s for s in sides]
            given = any(isinstance(s, ast.Name) and s.id in names for s in sliced)
            if given and any(isinstance(s, ast.List | ast.Tuple) for s in sides):
                found.append(node.lineno)
    return found


def test_no_sequence_is_compared_with_a_list_or_a_tuple() -> None:
    """Mypy accepts `Sequence[str] != []`, since a Sequence may be a list; a tuple is never equal to it."""
    assert literal_comparisons("def f(a: Sequence[str]) -> bool:\n    return a[:1] != [] and () == a") == [2, 2]
    assert literal_comparisons("def f(a: list[str]) -> bool:\n    return a[:1] != []") == []
    code = [path for path in committed() if path.suffix == ".py" and path.relative_to(ROOT).parts[0] != "tests"]
    found = {path.relative_to(ROOT).as_posix(): literal_comparisons(path.read_text()) for path in code}
    assert {name: at for name, at in found.items() if at} == {}


def test_plain_data_are_structs() -> None:
    """A dataclass costs 0.33 ms where its module is imported, a struct 0.01 ms; a run has 250 of them.

    Left are three that need what structs lack: `Key` a secret that its repr leaves out, `Deny` a field that is not
    compared, `AgentTask` a form that Temporal can send. Starts do not import the rehearsal."""
    marked = re.compile(r"^ *@dataclass.*\n *class (\w+)", re.MULTILINE)
    code = [path for path in committed() if path.suffix == ".py" and path.relative_to(ROOT).parts[0] == "wal_agent"]
    found = [name for path in code if "rehearsal" not in path.parts for name in marked.findall(path.read_text())]
    assert sorted(found) == ["AgentTask", "Deny", "Key"]


# ---- the wheel ----------------------------------------------------------------------------------------------------

one_worker = pytest.mark.xdist_group("wheel")  # since each worker would build the wheel anew


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is committed, and some of what a checkout has besides."""
    source = tmp_path_factory.mktemp("source")
    for path in committed():
        to = source / path.relative_to(ROOT)
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, to)
    for made in ("hooks/__pycache__/client.pyc", "wal_agent/_shipped/hooks/client", "wal_agent/_shipped/more"):
        (source / made).parent.mkdir(parents=True, exist_ok=True)
        (source / made).write_text("old")
    return source


def build(source: Path, out: Path, compiler: str = "") -> Path:
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    env = {key: value for key, value in os.environ.items() if key != "CC"} | ({"CC": compiler} if compiler else {})
    done = subprocess.run([*pip, "-w", out, source], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return next(out.glob("*.whl"))


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(source, tmp_path_factory.mktemp("wheel"))


@one_worker
def test_the_wheel_holds_the_package_and_what_ships_beside_it(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    files = [path.relative_to(ROOT).as_posix() for path in committed()]
    wanted = {name for name in files if name.startswith("wal_agent/")}
    wanted |= {f"wal_agent/_shipped/{name}" for name in files if name.startswith("hooks/")}
    wanted.add("wal_agent/_shipped/hooks/client")
    (data,) = {name.partition("/")[0] for name in names if ".data/" in name}
    wanted |= {f"{data}/data/share/man/man1/{Path(name).name}" for name in files if name.startswith("docs/man/")}
    assert {name for name in names if ".dist-info/" not in name} == wanted
    assert "wal_agent/calls/rules/rules.d/10-git.toml" in names and "wal_agent/py.typed" in names
    assert any(name.endswith("/licenses/LICENSE") for name in names)


@one_worker
def test_the_wheel_works_where_there_is_no_checkout(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path)
    code = (
        "from wal_agent.paths import shipped; from wal_agent.calls.rules.table import load_rules; load_rules();"
        "from wal_agent.wording import FOLDER; print(shipped('hooks/client.py'), FOLDER / 'recovery.md')"
    )
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True, check=True
    )
    found = ("_shipped/hooks/client.py", "wording/recovery.md")
    assert done.stdout.split() == [str(tmp_path / "wal_agent" / name) for name in found]
    assert Path(done.stdout.split()[1]).is_file()


def install(wheel: Path, target: Path) -> None:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(target)]
    subprocess.run([*pip, str(wheel)], check=True)


def hook_client(target: Path) -> list[str]:
    """What the installed package would start for a hook."""
    code = "from wal_agent.agents.hook_line import client_command; print(*client_command(), sep='\\n')"
    env = {**os.environ, "PYTHONPATH": str(target)}
    done = subprocess.run([sys.executable, "-c", code], cwd=target, env=env, capture_output=True, check=True)
    return done.stdout.decode().splitlines()


@one_worker
def test_a_wheel_with_the_native_client_is_for_this_platform_and_any_python(wheel: Path, tmp_path: Path) -> None:
    assert re.fullmatch(r"wal_agent-.*-py3-none-(manylinux_2_17|linux|macosx)_[\w.]+\.whl", wheel.name)
    install(wheel, tmp_path)
    assert hook_client(tmp_path) == [str(tmp_path / "wal_agent/_shipped/hooks/client")]


MAKES_JUNK = """sh -c 'while [ "$1" != -o ]; do shift; done; echo >"$2"; chmod +x "$2"' sh"""


@pytest.mark.parametrize("compiler", once(["/nowhere/cc", "false", "true", MAKES_JUNK], MAKES_JUNK))
def test_without_a_compiler_that_works_the_wheel_is_for_all(source: Path, tmp_path: Path, compiler: str) -> None:
    """None there; it fails; it makes nothing; it makes what does not run."""
    wheel = build(source, tmp_path / "wheel", compiler)
    assert wheel.name.endswith("-py3-none-any.whl")
    assert "wal_agent/_shipped/hooks/client" not in zipfile.ZipFile(wheel).namelist()
    install(wheel, tmp_path / "lib")
    assert hook_client(tmp_path / "lib")[-1] == str(tmp_path / "lib/wal_agent/_shipped/hooks/client.py")


def test_without_a_static_libc_the_client_is_dynamic(tmp_path: Path) -> None:
    tool(tmp_path, "cc", 'case " $* " in *" -static "*) exit 1;; esac; exec cc "$@"')
    made = tmp_path / "client"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CC", str(tmp_path / "cc"))
        assert compile_client(ROOT / "hooks" / "client.c", made) is None
        patch.setenv("CC", "false")
        assert compile_client(ROOT / "hooks" / "client.c", tmp_path / "none") is not None
    assert subprocess.run([made, hook_line.VERSION], check=False).returncode == 0


@one_worker
def test_only_a_client_without_an_interpreter_is_for_each_linux(wheel: Path, tmp_path: Path) -> None:
    """A tag is a promise about libc, which a static program keeps by needing none."""
    (tmp_path / "main.c").write_text("int main(void) { return 0; }")
    subprocess.run(["cc", "-o", tmp_path / "dynamic", tmp_path / "main.c"], check=True)
    assert not is_static(tmp_path / "dynamic") and not is_static(tmp_path / "main.c")
    (tmp_path / "client").write_bytes(zipfile.ZipFile(wheel).read("wal_agent/_shipped/hooks/client"))
    assert is_static(tmp_path / "client") == ("manylinux" in wheel.name) == ("musllinux" in wheel.name)


def test_a_build_that_fails_leaves_no_older_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "client").touch()
    monkeypatch.setenv("CC", "false")
    assert "false" in str(compile_client(ROOT / "hooks" / "client.c", tmp_path / "client"))
    assert list(tmp_path.iterdir()) == []


def test_the_client_compiles_without_a_warning(tmp_path: Path) -> None:
    flags = ["-std=c99", "-pedantic", "-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-Werror", "-O2"]
    subprocess.run(["cc", *flags, "-o", tmp_path / "client", ROOT / "hooks" / "client.c"], check=True)


@one_worker
def test_the_source_distribution_makes_the_same_wheel(source: Path, wheel: Path, tmp_path: Path) -> None:
    code = f"import hatchling.build; print(hatchling.build.build_sdist({str(tmp_path)!r}))"
    subprocess.run([sys.executable, "-c", code], cwd=source, check=True, capture_output=True)
    (sdist,) = tmp_path.glob("*.tar.gz")
    again = build(sdist, tmp_path / "wheel")
    assert again.name == wheel.name
    assert sorted(zipfile.ZipFile(again).namelist()) == sorted(zipfile.ZipFile(wheel).namelist())


def test_an_editable_install_compiles_into_the_checkout(source: Path, tmp_path: Path) -> None:
    code = f"import hatchling.build; hatchling.build.build_editable({str(tmp_path)!r})"
    subprocess.run([sys.executable, "-c", code], cwd=source, check=True, capture_output=True)
    assert hook_client(source) == [str(source / "wal_agent/_shipped/hooks/client")]


# ---- prerequisites ------------------------------------------------------------------------------------------------


def check(tools: Path, *words: str) -> tuple[int, str]:
    """check-prerequisites on a machine that has only what is in `tools`."""
    done = subprocess.run(
        ["/bin/sh", str(ROOT / "scripts" / "check-prerequisites"), *words],
        env={"PATH": str(tools)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == ""
    return done.returncode, done.stderr


def tool(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def test_a_machine_with_everything_hears_nothing(tmp_path: Path) -> None:
    (tmp_path / "python3").symlink_to(sys.executable)
    tool(tmp_path, "node", "echo 20.1.0")
    for name in ("npm", "git", "cc", "tmux"):
        tool(tmp_path, name, "echo 1")
    assert check(tmp_path, "python", "node", "npm", "git", "cc", "tmux") == (0, "")


@pytest.mark.parametrize("word", ["python", "node", "npm", "git", "cc", "tmux"])
def test_a_missing_tool_is_one_line(tmp_path: Path, word: str) -> None:
    code, said = check(tmp_path, word)
    assert code == 1
    assert re.fullmatch(rf"wal-agent: {word}3? is missing.*\n", said)


@pytest.mark.parametrize(
    ("name", "script", "says"),
    [
        ("node", "echo 18.20.1", "wal-agent: node is 18.20.1, but 20 or newer is needed to run Gemini CLI."),
        (
            "python3",
            "case $2 in *exit*) exit 1;; esac; echo 3.9",
            "wal-agent: python3 is Python 3.9, but 3.11 or",
        ),
        (
            "python3",
            "case $2 in *print*) echo 3.12;; *ensurepip*) exit 1;; esac",
            "wal-agent: python3 has no venv",
        ),
    ],
)
def test_an_unfit_tool_is_one_line(tmp_path: Path, name: str, script: str, says: str) -> None:
    tool(tmp_path, name, script)
    code, said = check(tmp_path, name.rstrip("3"))
    assert code == 1
    assert said.startswith(says) and said.count("\n") == 1


# ---- make and CI --------------------------------------------------------------------------------------------------


def test_every_target_is_in_the_help() -> None:
    env = {key: value for key, value in os.environ.items() if not key.startswith("MAKE")}  # a make may be above us
    done = subprocess.run(["make", "help"], cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    said = {line.split()[1] for line in done.stdout.splitlines()}
    parts = {"lint", "docs", "unit", "contract", "ceph", "faults", "e2e", "bench", "bench-crash", "wording"}
    assert said == {
        "help",
        "demo",
        "test",
        "test-all",
        "deep",
        "fuzz",
        "soak",
        *parts,
        "browser",
        "mutants",
        "pins",
        "tools",
        "latest",
        "dist",
        "clean",
    }


@pytest.mark.parametrize(
    ("broken", "minutes", "code"),
    [("", "24", 0), ("test", "24", 1), ("deep", "24", 1), ("ceph", "24", 1), ("", "0", 1)],
)
def test_ci_runs_both_tiers_and_fails_when_one_does_or_the_first_takes_too_long(
    tmp_path: Path, broken: str, minutes: str, code: int
) -> None:
    made = tmp_path / "made"
    done = run_ci(tmp_path, f'echo "$*" >>{made}; echo of make; [ "$1" != "{broken}" ]', minutes)
    assert done.returncode == code, done.stdout + done.stderr
    assert made.read_text().splitlines()[1:] == ["test", "deep", "ceph"]
    assert [line.partition(":")[0] for line in done.stdout.splitlines() if " min " in line] == [
        "make test",
        "make deep",
        "make ceph",
    ]
    assert done.stdout.count("of make\n") == 4


def test_ci_says_in_its_last_line_why_ceph_was_not_tried_and_passes(tmp_path: Path) -> None:
    done = run_ci(
        tmp_path, '[ "$1" != ceph ] || { mkdir -p .tools/ceph; echo no mirror >.tools/ceph/untried; exit 2; }'
    )
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "CEPH WAS NOT TRIED: no mirror")


def test_each_mutant_that_changes_nothing_is_of_a_line_that_stands() -> None:
    rows = [row for row in (ROOT / "scripts/equivalent_mutants.txt").read_text().splitlines() if row[0] != "#"]
    for row in rows:
        path, rest = row.split(" | ", 1)
        code = rest.rsplit(" | ", 2)[0]
        assert code in map(str.strip, (ROOT / path).read_text().splitlines()), row
    assert rows


def run_ci(folder: Path, make: str, minutes: str = "24") -> subprocess.CompletedProcess[str]:
    """In `folder`, with this `make`."""
    tool(folder, "make", make)
    for name in ("tmux", "cc", "ip", "systemd-analyze"):
        tool(folder, name, "exit 0")
    (folder / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", folder / ".ci")
    env = {"PATH": f"{folder}:{os.environ['PATH']}", "WAL_AGENT_TEST_MINUTES": minutes}
    return subprocess.run(["bash", folder / ".ci/run"], env=env, capture_output=True, text=True, check=False)


def test_no_group_is_repeated_possessively() -> None:
    """CPython before 3.11.5 matches that wrongly (gh-106052), and Debian 12 has 3.11.2: redaction missed secrets there.
    `(?>...)` says the same."""
    files = [path for ending in ("py", "toml") for path in (ROOT / "wal_agent").rglob(f"*.{ending}")]
    possessive = re.compile(r"(?<!\\)\)(?:[*+?]|\{\{?\d*,?\d*\}\}?)\+")
    found = [path.name for path in files if possessive.search(path.read_text("utf-8"))]
    assert len(files) > 100 and found == []
