"""supervise/hook_selftest.py: an untested version proves itself, and hooks that are switched off later end the run."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from wal_agent.agents import AGENTS
from wal_agent.agents.base import Agent, Cli, HookSetup
from wal_agent.agents.claude import cli
from wal_agent.agents.claude.hooks import merge_settings
from wal_agent.errors import ConfigError
from wal_agent.rehearsal import selftest
from wal_agent.rehearsal.selftest import IN_PROOF, Proof, Unreached
from wal_agent.supervise import hook_selftest, options
from wal_agent.supervise.hook_selftest import HookSwitches
from wal_agent.supervise.options import Screen

GEMINI = AGENTS["gemini"]


class Bench:
    """A program of an untested version, and a self-test that gives what it is told to."""

    def __init__(self, base: Path) -> None:
        self.program = base / "gemini"
        self.program.write_text("one")
        self.env = {"HOME": str(base / "home")}
        self.said: list[str] = []
        self.screen = Screen(self.said.append, self.said.extend)
        self.asked: list[Mapping[str, str]] = []
        self.answer = [Proof("it denies", True)]

    def prove(self, agent: Agent, env: Mapping[str, str]) -> list[Proof]:
        self.asked.append(env)
        return self.answer

    def start(self, version: str = "9.9.9", **env: str) -> int:
        """How many proofs this start took."""
        before = len(self.asked)
        hook_selftest.prove_untested_version(GEMINI, Cli(self.program, version), {**self.env, **env}, self.screen)
        return len(self.asked) - before

    @property
    def note(self) -> Path:
        return Path(self.env["HOME"]) / ".local/state/wal-agent/proven/gemini.json"


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    made = Bench(tmp_path)
    monkeypatch.setattr(selftest, "prove", made.prove)
    return made


def test_the_tested_version_is_not_on_trial(bench: Bench) -> None:
    assert bench.start(GEMINI.tested) == 0 and bench.said == []


@pytest.mark.parametrize("name", [name for name, agent in AGENTS.items() if agent.also])
def test_an_older_tested_version_is_not_on_trial(bench: Bench, name: str) -> None:
    """The contract suite runs on it too."""
    for version in AGENTS[name].also:
        hook_selftest.prove_untested_version(AGENTS[name], Cli(bench.program, version), bench.env, bench.screen)
    assert (bench.asked, bench.said) == ([], [])


def test_another_version_proves_itself_once(bench: Bench) -> None:
    assert bench.start() == 1
    assert bench.asked[0]["WAL_AGENT_GEMINI"] == str(bench.program)
    assert bench.start() == 0
    assert bench.said == [f"gemini 9.9.9 was not tested, {GEMINI.tested} was."] * 2


@pytest.mark.parametrize("change", ["version", "program", "place", "wal-agent", "note"])
def test_what_a_proof_does_not_hold_for(bench: Bench, change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.start()
    version = "9.9.9"
    match change:
        case "version":
            version = "9.9.10"
        case "program":
            os.utime(bench.program, ns=(1, 1))
        case "place":
            bench.program = bench.program.rename(bench.program.with_name("other"))
        case "wal-agent":
            monkeypatch.setattr(hook_selftest, "__version__", "99")
        case "note":
            bench.note.write_text('{"half": ')
    assert bench.start(version) == 1
    assert bench.start(version) == 0


def test_a_proof_starts_no_proof(bench: Bench, tmp_path: Path) -> None:
    home = tmp_path / "wal-agent-doctor-x" / "allow" / "home"
    home.mkdir(parents=True)
    assert bench.start(**{IN_PROOF: str(home.parent), "HOME": str(home)}) == 0 and not bench.note.exists()


@pytest.mark.parametrize("value", ["1", "0", "no", "/", ".", "{base}", "{base}/wal-agent-doctor-x/gone"])
def test_nothing_else_switches_the_proof_off(bench: Bench, tmp_path: Path, value: str) -> None:
    (tmp_path / "home").mkdir()
    assert bench.start(**{IN_PROOF: value.format(base=tmp_path)}) == 1
    assert any("is ignored" in said for said in bench.said)


def test_what_fails_is_refused_with_what_was_seen_and_remembered_for_a_while(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.answer = [Proof("it allows", True), Proof("it denies", False, "the tool\nran")]
    for _ in range(2):
        with pytest.raises(ConfigError) as refused:
            bench.start()
        assert refused.value.exit_code == 78
        assert "it denies: no (the tool ran). Nothing was run." in str(refused.value)
        assert f"Use {GEMINI.tested}" in str(refused.value) and "it allows" not in str(refused.value)
    assert len(bench.asked) == 1
    monkeypatch.setattr(hook_selftest, "AGAIN", 0.0)
    bench.answer = [Proof("it denies", True)]
    assert bench.start() == 1


def test_what_never_reached_its_model_is_told_with_the_way_out(bench: Bench) -> None:
    """A launcher that needs the user's home says nothing about hooks."""
    bench.answer = [Unreached("it allows", False, "exit 127\nno version is set")] * 2
    with pytest.raises(ConfigError) as refused:
        bench.start()
    assert "could not be proven here" in str(refused.value) and "exit 127 no version is set" in str(refused.value)
    assert "do not hold" not in str(refused.value) and "WAL_AGENT_GEMINI=/real/program" in str(refused.value)
    bench.program = bench.program.rename(bench.program.with_name("real"))
    bench.answer = [Proof("it allows", True)]
    assert bench.start() == 1


def test_a_disk_that_keeps_no_note_costs_another_proof(bench: Bench) -> None:
    Path(bench.env["HOME"]).write_text("no folder")
    assert bench.start() == 1 and bench.start() == 1


def test_only_so_many_programs_are_remembered(bench: Bench) -> None:
    for n in range(hook_selftest.MOST + 2):
        assert bench.start(f"9.9.{n}") == 1
    assert bench.start(f"9.9.{hook_selftest.MOST + 1}") == 0
    assert bench.start("9.9.0") == 1


def test_what_takes_long_is_said(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    on = options.WaitReport(bench.said.append).waiting_for
    bench.screen = Screen(bench.said.append, bench.said.extend, lambda what, most=0.0, after=0.0: on(what, most, 0.0))

    def slow(agent: Agent, env: Mapping[str, str]) -> list[Proof]:
        while len(bench.said) < 2:
            time.sleep(0.005)
        return [Proof("it denies", True)]

    monkeypatch.setattr(selftest, "prove", slow)
    bench.start()
    assert "the proof that the hooks of gemini 9.9.9 allow and deny; once for this version" in bench.said[1]
    assert f"gives up after {2 * selftest.SECONDS:.0f} s" in bench.said[1]


def test_an_agent_without_hooks_has_nothing_to_prove(bench: Bench) -> None:
    hook_selftest.prove_untested_version(AGENTS["generic"], Cli(Path(os.devnull), ""), bench.env, bench.screen)
    assert bench.said == [] and bench.asked == []


CLAUDE = AGENTS["claude"]


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HookSwitches:
    monkeypatch.setattr(cli, "MANAGED", tmp_path / "etc")
    (tmp_path / "etc").mkdir()
    (tmp_path / "run").mkdir()
    injected = CLAUDE.inject(HookSetup("r", tmp_path / "run", ("client",)), {})
    return HookSwitches(CLAUDE, (), tmp_path, {"HOME": str(tmp_path), **injected.env})


@pytest.mark.parametrize("name", ["managed-settings.json", "managed-settings.d/10.json"])
@pytest.mark.parametrize(
    "text",
    [
        '{"disableAllHooks": true}',
        '{"disableAllHooks": "yes"}',
        '{"allowManagedHooksOnly": true}',
        '{"strictPluginOnlyCustomization": ["hooks"]}',
    ],
)
def test_an_organisations_settings(tmp_path: Path, watched: HookSwitches, name: str, text: str) -> None:
    """These count more than this run's own."""
    file = tmp_path / "etc" / name
    file.parent.mkdir(exist_ok=True)
    assert watched.check() is None
    file.write_text('{"model": "x"}')
    assert watched.check() is None
    file.write_text(text)
    error = watched.check()
    assert error is not None and error.exit_code == 78 and str(file) in error.what


@pytest.mark.parametrize("how", ["changed", "gone", "the same"])
def test_this_runs_own_settings(tmp_path: Path, watched: HookSwitches, how: str) -> None:
    own = tmp_path / "run/claude-settings.json"
    if how == "gone":
        own.unlink()
    else:
        own.write_text("{}" if how == "changed" else own.read_text())
    assert (watched.check() is None) == (how == "the same")


def test_what_counts_less_ends_no_run(tmp_path: Path, watched: HookSwitches) -> None:
    """I6: the user's and the project's files, and a run of an agent that reads nothing again."""
    for name in (".claude/settings.json", ".claude/settings.local.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text('{"disableAllHooks": true}')
    assert watched.check() is None
    assert HookSwitches(AGENTS["gemini"], (), tmp_path, {}).check() is None


def test_what_this_runs_settings_say_counts_more_than_the_users_own(tmp_path: Path) -> None:
    """I6: the user's `--settings` is in one file with them, and keeps its other variables."""
    injected = CLAUDE.inject(HookSetup("r", tmp_path, ("client",)), {})
    users = {"env": {"A": "b", "CLAUDE_CODE_SIMPLE": "1"}, "disableAllHooks": True, "model": "m"}
    both = json.loads(merge_settings(Path(injected.env["WAL_AGENT_CLAUDE_SETTINGS"]), users).read_bytes())
    assert both["disableAllHooks"] is False and both["model"] == "m"
    assert both["env"]["A"] == "b" and both["env"]["CLAUDE_CODE_SIMPLE"] == "0"
