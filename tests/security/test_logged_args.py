"""Arguments come from a log only if this machine wrote that record, or a person typed or confirms them."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.supervise.crew import short_folder
from wal_agent.agents import AGENTS
from wal_agent.config import Settings
from wal_agent.errors import ConfigError, Damaged, PersonNeeded
from wal_agent.records import Host, Opening
from wal_agent.recovery.plan import prior_args
from wal_agent.recovery.restore_session import SessionTarget, check_files
from wal_agent.supervise import ancestry, provenance
from wal_agent.supervise.machine import RunDir, runtime_dir
from wal_agent.supervise.options import RunOptions, Screen
from wal_agent.supervise.provenance import admit_args, is_noted, may_end_leftovers, remember_args
from wal_agent.text import quote_word
from wal_agent.wal.state import FileState, OpeningAt, State

RUN = "0123456789abcdef"
ARGS = ("--yolo", "-p", "work")
EVIL = ("--settings", '{"hooks": "x"}', "-p", "work")


def opening(args: tuple[str, ...] = ARGS, run: str = RUN, epoch: int = 1, **more: Any) -> Opening:
    host = Host(name="h", boot="b", pidns="1", pid=1, lock="")
    known: dict[str, Any] = {"time": 1.0, "cause": "first", "agent": "claude", "agent_version": "", "version": ""}
    return Opening(run=run, epoch=epoch, host=host, workspace="/w", args=args, **{**known, **more})


class Start:
    """A start on one machine, of which nothing but its state folder is known."""

    def __init__(self, state: Path, **settings: Any) -> None:
        self.rows: list[str] = []
        self.env = {"XDG_STATE_HOME": str(state), "HOME": str(state)}
        self.settings = Settings("gs://b", "job", **settings)

    def typed(self, args: tuple[str, ...] = ARGS, run: str = RUN) -> None:
        remember_args(self.env, "gs://b", "job", run, args)

    def admits(self, args: tuple[str, ...], *openings: Opening, typed: tuple[str, ...] = (), **env: str) -> None:
        wish = RunOptions(AGENTS["claude"], typed, self.settings, Path("/w"), {**self.env, **env})
        admit_args(wish, openings, args, Screen(self.rows.append, self.rows.extend))


@pytest.fixture
def start(tmp_path: Path) -> Start:
    return Start(tmp_path)


def test_what_this_machine_typed_counts(start: Start) -> None:
    start.typed()
    start.admits(ARGS, opening())
    start.admits(())
    assert start.rows == []


def test_what_is_typed_now_needs_no_note(start: Start) -> None:
    start.admits(ARGS, opening(), typed=ARGS)


def test_what_is_typed_and_another_opening_is_read_back(start: Start) -> None:
    """Whoever writes the bucket may replace our own opening between its put and the replay."""
    with pytest.raises(ConfigError):
        start.admits(EVIL, opening(EVIL), typed=ARGS)


@pytest.mark.parametrize(
    "forged",
    [
        opening(EVIL),  # the same run id, other arguments
        opening(run="fedcba9876543210"),  # a run that was never here
        opening(run="../../../etc/passwd"),
        opening(run=""),
        opening((*ARGS, "")),
        opening(("--yolo -p work",)),
    ],
)
def test_a_forged_opening_does_not(start: Start, forged: Opening) -> None:
    start.typed()
    with pytest.raises(ConfigError) as refused:
        start.admits(forged.args, forged)
    words = shlex.split(refused.value.hint.partition(": ")[2])
    named = ["wal-agent", "run", "claude", "--job", "job", "--bucket", "gs://b", "--"]
    assert (refused.value.exit_code, words) == (78, [*named, *forged.args])


@pytest.mark.parametrize(("url", "job"), [("gs://other", "job"), ("gs://b", "job2"), ("file:///b%FF", "job")])
def test_nor_does_a_note_of_another_job(start: Start, url: str, job: str) -> None:
    """A copy of a log in another bucket, or under another name."""
    remember_args(start.env, url, job, RUN, ARGS)
    with pytest.raises(ConfigError):
        start.admits(ARGS, opening())


def test_a_task_has_the_arguments_of_its_caller_only_where_they_were_typed_here(start: Start) -> None:
    """Otherwise anyone who can write to the bucket could choose the child's permissions."""
    log = State(epoch=1, home=1, openings=(OpeningAt(1, opening()),))
    assert provenance.vouched_args(start.env, "gs://b", "job", log) == ()
    start.typed()
    assert provenance.vouched_args(start.env, "gs://b", "job", log) == ARGS
    forged = State(epoch=1, home=1, openings=(OpeningAt(1, opening(EVIL)),))
    assert provenance.vouched_args(start.env, "gs://b", "job", forged) == ()
    assert provenance.vouched_args(start.env, "gs://b", "job", State()) == ()


def test_nor_on_another_machine(start: Start, tmp_path: Path) -> None:
    start.typed()
    with pytest.raises(ConfigError):
        Start(tmp_path / "vm-2").admits(ARGS, opening())


def test_who_accepts_what_the_log_says_is_asked_nothing(tmp_path: Path) -> None:
    start = Start(tmp_path, accept_logged_args="on")
    start.admits(ARGS, opening())
    assert "--accept-logged-args" in start.rows[0]


def test_an_agent_accepts_nothing_that_the_log_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """I8."""
    monkeypatch.setattr(ancestry, "outer_runs", lambda: (ancestry.OuterRun(RUN, 1),))
    with pytest.raises(PersonNeeded, match="--accept-logged-args"):
        Start(tmp_path, accept_logged_args="on").admits(ARGS, opening())


def test_arguments_of_a_log_that_switch_the_hooks_off_are_refused_all_the_same(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="hooks"):
        Start(tmp_path, accept_logged_args="on").admits(("--bare", "-p", "x"), opening(("--bare", "-p", "x")))


def test_a_log_cannot_have_the_processes_of_another_jobs_run_ended(start: Start) -> None:
    """A live run is ended only by a start of its own job, which this machine has noted (a supervisor that hangs)."""
    with short_folder() as folder:
        env = {**start.env, "WAL_AGENT_RUNTIME_DIR": str(folder / "run")}
        assert may_end_leftovers(env, "gs://b", "job", opening()), "nobody knows the run, so it is over"
        live = RunDir.create(runtime_dir(env), RUN)
        assert not may_end_leftovers(env, "gs://b", "job", opening())
        remember_args(env, "gs://b", "another", RUN, ())
        assert not may_end_leftovers(env, "gs://b", "job", opening(()))
        assert may_end_leftovers(env, "gs://b", "another", opening(()))
        live.end()
        assert may_end_leftovers(env, "gs://b", "job", opening())


def test_the_notes_are_private_and_few(start: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(provenance, "MAX_NOTES", 5)
    for n in range(20):
        start.typed(run=f"{n:016x}")
    folder = tmp_path / "wal-agent/typed"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert len(notes := sorted(folder.iterdir())) == 5 and notes[-1].name == f"{19:016x}"
    assert {note.stat().st_mode & 0o777 for note in notes} == {0o600}
    assert all(word not in note.read_text() for note in notes for word in ARGS)
    assert is_noted(start.env, "gs://b", "job", opening(run=f"{19:016x}"))


def test_a_state_folder_that_takes_nothing_costs_a_question_only(start: Start, tmp_path: Path) -> None:
    (tmp_path / "wal-agent").write_text("")
    start.typed()
    assert not is_noted(start.env, "gs://b", "job", opening())


def test_the_command_is_whole_and_names_what_was_named(tmp_path: Path) -> None:
    sources: dict[str, Any] = {"bucket": "flag", "job": "flag"}
    start = Start(tmp_path, sources=sources)
    long = ("-p", "x" * 5000)
    with pytest.raises(ConfigError, match="the command above"):
        start.admits(long, opening(long))
    named = ["wal-agent", "run", "claude", "--job", "job", "--bucket", "gs://b", "--"]
    assert shlex.split(start.rows[0]) == [*named, *long]


def test_a_secret_is_not_shown(start: Start) -> None:
    args = ("--api-key", "ghp_" + "a1B2c3D4e5" * 4)
    with pytest.raises(ConfigError) as refused:
        start.admits(args, opening(args))
    assert args[1] not in f"{refused.value}{start.rows}"


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20))
def test_a_quoted_word_is_that_word_for_a_shell_and_harmless_for_a_terminal(word: str) -> None:
    assert quote_word(word).isprintable()
    said = subprocess.run(["bash", "-c", f"printf %s {quote_word(word)}"], capture_output=True, check=True).stdout
    assert said == word.encode()


@pytest.mark.parametrize("session", ["--settings={}", "-r", "../../x", "a/b", "a b", "a\0b", "a\n", "", "x" * 200])
@pytest.mark.parametrize("name", AGENTS)
def test_a_session_id_of_a_log_is_an_id(name: str, session: str, tmp_path: Path) -> None:
    """It becomes a word of the agent's command line, and a part of a file's name."""
    agent = AGENTS[name]
    place = SessionTarget(agent, session, tmp_path, {"HOME": str(tmp_path)}, tmp_path / "kept")
    with pytest.raises(Damaged, match="which is no session's id"):
        check_files(place, {agent.main_file: FileState(session=session, size=1, sha256="0" * 64)})


# ---- which of the log's openings is meant


def before(*openings: Opening) -> State:
    return State(openings=tuple(OpeningAt(n, o) for n, o in enumerate(openings, 1)), home=openings[-1].epoch)


def test_a_start_without_words_goes_on_with_those_before() -> None:
    dead = msgspec.structs.replace(opening((), epoch=2), cause="dead")
    assert prior_args(before(opening(), dead)) == ARGS
    assert prior_args(before(opening(), dead, msgspec.structs.replace(dead, epoch=3))) == ARGS
    assert prior_args(before(opening(), msgspec.structs.replace(dead, cause="closed"))) == ()
    assert prior_args(before(opening(), opening(("-c",), epoch=2))) == ("-c",)
