"""Between the opening and the agent's start: the plan, and carrying it out (RECOVERY.md).

Nothing on disk is changed and no process is ended before the plan (R2); what is looked up for it only reads.
"""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from wal_agent.agents import AGENTS, tools_of
from wal_agent.agents.base import Agent, Env, NewSession, Reconciled, ResumeSession
from wal_agent.clock import Clock
from wal_agent.concurrency import call_with_timeout
from wal_agent.config import Settings
from wal_agent.errors import FolderInUse, Unavailable, WalAgentError
from wal_agent.events import CheckpointFailed, CheckpointRestored, Recovered
from wal_agent.failpoints import failpoint
from wal_agent.paths import state_dir
from wal_agent.records import Edit, End, FileDelta, FileGone, Handoff, Host, MessageSeen, Payload, Recovery, Verdict
from wal_agent.recovery import report as tree_words
from wal_agent.recovery.plan import Alert, Plan, Policy, Refuse, Resume, Start, StartAgain
from wal_agent.recovery.report import (
    Report,
    fenced_line,
    headline,
    in_flight_lines,
    left_out_line,
    lost_lines,
    name_calls,
    one_line,
    put_back_line,
    restored_line,
    resuming_line,
    row,
    stopped_line,
    unannounced_lines,
)
from wal_agent.recovery.restore_session import (
    EXACT,
    Restored,
    SessionTarget,
    create_session,
    drop_old_restores,
    restore,
)
from wal_agent.recovery.restore_target import Keep
from wal_agent.redact import redact
from wal_agent.safefs import Pieces
from wal_agent.supervise import processes, recovery_input
from wal_agent.supervise.leftovers import Leftovers, find_leftovers
from wal_agent.supervise.machine import job_at_work, lock_state, runtime_dir
from wal_agent.supervise.options import RunOptions, Screen
from wal_agent.supervise.provenance import NOBODY, SessionOwner, admit_args, may_end_leftovers
from wal_agent.supervise.recovery_input import InnerRuns, Situation, fetch_payload, logged_calls, read_situation
from wal_agent.supervise.worktree import WorktreePlan, plan_worktree
from wal_agent.wal.blobs import Blobs
from wal_agent.wal.job import OpenedJob
from wal_agent.wal.state import FileState, MessageAt
from wal_agent.wording import messages

if TYPE_CHECKING:
    from wal_agent.conversation.checkpoint import WorkSoFar
    from wal_agent.inbox import Driver, Message
    from wal_agent.recovery.inflight import AskedCall, InFlight
    from wal_agent.recovery.prompt import HandedOver, PromptInput, Templates
    from wal_agent.recovery.report import MissingEffects
    from wal_agent.recovery.restore_workspace import TreeResult

MESSAGES_WAIT = 5.0  # seconds for the messages that the lost run may not have shown to the agent
RECORD_DEADLINE = 20.0  # seconds for the recovery's own record
MAX_OPEN_LINES = 3
MAX_LOGGED_PROMPT = 60_000  # characters of the prompt that are kept in the log


class PreparedStart(msgspec.Struct, frozen=True):
    """How the agent is to start. `captured`: what of its session the log already holds; `exact`: the folder with copies
    of that, which were restored and not repaired. `verdicts`: of calls that
    the agent is told of; `asked`: those that it is asked about."""

    session: NewSession | ResumeSession
    args: tuple[str, ...]
    captured: dict[str, FileState]
    verdicts: tuple[Verdict, ...] = ()
    harmless: frozenset[int] = frozenset()  # calls whose class says that they may be done again
    asked: tuple[AskedCall, ...] = ()
    context: str = ""  # words for the model with the first turn, beside the person's own
    repeated: tuple[MessageAt, ...] = ()  # messages that the prompt holds
    exact: Path | None = None


def harmless_calls(calls: Iterable[InFlight]) -> frozenset[int]:
    """The calls that may be done again, by the class that the prompt names."""
    return frozenset(n for c in calls if c.cls in ("read_only", "idempotent") for n in c.calls)


def blank_files(agent: Agent, session: str) -> Mapping[str, FileState]:
    """The files of a session that holds nothing."""
    made = {}
    for name, data in {agent.main_file: b"", **agent.capabilities.blank}.items():
        size, sha256 = len(data), hashlib.sha256(data).hexdigest()
        edits = (Edit(0, Payload(size, data)),)
        made[name] = FileState.first(
            FileDelta(time=0.0, path=name, size=size, sha256=sha256, edits=edits, session=session)
        )
    return made


def recovery_policy(options: RunOptions) -> Policy:
    """What the user decided. A person at the terminal is there to look, so no crash loop is halted then."""
    settings = options.settings
    limit = 0 if options.attended else settings.restart_limit
    return Policy(
        settings.on_ambiguity, options.go_on, options.fresh, limit, settings.restart_window, named=options.hosted
    )


class RecoveryCase:
    """What a start has to decide on: the log's situation and this machine's. Reads only."""

    def __init__(
        self, at: Situation, here: Host, agent: Agent, workspace: Path, settings: Settings, env: Env, clock: Clock
    ) -> None:
        self.at, self.here, self.agent, self.workspace, self.clock = at, here, agent, workspace, clock
        self.job = settings.job
        self.tree: WorktreePlan = plan_worktree(at, here, workspace, settings, agent, env)
        self._inner = InnerRuns(settings, env, here, agent.name)

    def verdicts(self, left: Leftovers, gone: bool, done: TreeResult) -> tuple[Verdict, ...]:
        """What the evidence says now. `left`: the old run's processes that were found; `gone`: that nothing of it runs
        any more; `done`: with the working tree."""
        if not self.at.before.open:
            return ()
        from wal_agent.evidence import collector  # late: a start without a call in flight needs none of it
        from wal_agent.recovery.inflight import carry_over

        at, covers = self.at, self.tree.covers(done)
        found = collector.decide_verdicts(
            at.before,
            at.calls,
            self.here,
            self.workspace,
            collector.Remains(gone, left.lines, left.calls),
            self.clock,
            covers,
            self._inner,
        )
        return carry_over(found, at.before.recovery, self.tree.will_hold)

    def decide(self, verdicts: Sequence[Verdict], policy: Policy, blobs: Blobs) -> Plan:
        talked = recovery_input.has_conversation(self.at, self.agent, blobs, self.workspace)
        return recovery_input.decide_recovery(self.at, self.agent, verdicts, policy, self.tree.identity, talked)

    def effects(self, done: TreeResult) -> MissingEffects:
        """Which calls' changes to files may not be here."""
        return recovery_input.without_found(self.tree.effects(done), self.at, self.workspace, self.clock)

    def prompt_input(
        self, decided: StartAgain | Resume, verdicts: Sequence[Verdict], ended: Sequence[str], done: TreeResult
    ) -> PromptInput:
        """What the prompt is made of. `ended`: the old run's processes that were ended."""
        tree, effects = self.tree.describe(done), self.effects(done)
        place = recovery_input.StartPlace(self.job, self.here, self.workspace, self.agent)
        return recovery_input.collect_prompt_facts(
            self.at, place, decided, verdicts, ended, tree, effects, self.clock.now()
        )


class Preparation:
    """One recovery or fresh start, step by step. `check` raises when a signal asks us to end."""

    def __init__(
        self,
        options: RunOptions,
        opened: OpenedJob,
        here: Host,
        clock: Clock,
        screen: Screen,
        check: Callable[[], None],
        driver: Driver | None,
        admitted: tuple[str, ...],
    ) -> None:
        """`driver`: brings the messages that the lost run may not have shown to the agent; None: they are off.
        `admitted`: see prepare_start."""
        self.options = options
        self.driver = driver
        self.admitted = admitted
        self.repeated: tuple[MessageAt, ...] = ()
        self.opened = opened
        self.here = here
        self.clock = clock
        self.screen = screen
        self.check = check
        self.began = clock.boot()
        self.at: Situation = read_situation(opened)
        self.handoff: Handoff | None = None
        self.typed = ""  # the user's new words with this start
        if options.handoff:
            self.at, self.handoff = recovery_input.hand_over_to_opening(self.at)
        self.left = Leftovers()  # of the lost run
        self.seconds: dict[str, float] = {}  # of each step
        self.case = RecoveryCase(self.at, here, options.agent, options.workspace, options.settings, options.env, clock)
        self.tree = self.case.tree
        self.done: TreeResult = self.tree.now

    def go(self) -> PreparedStart:
        """Decide, then do. Raises the plan's refusal, Damaged, BucketError."""
        at, options = self.at, self.options
        settings = options.settings
        here = at.same_host(self.here)
        if at.home and here and may_end_leftovers(options.env, settings.bucket, settings.job, at.home):
            self.left = find_leftovers(at.home.run, at.before, at.calls)
        verdicts = self.case.verdicts(self.left, False, self.done)
        policy = recovery_policy(options)
        if self.handoff is not None:  # the crashes were the other agent's
            policy = replace(policy, crash_limit=0)
        decided = self.case.decide(verdicts, policy, self.opened.blobs)
        match decided:
            case Refuse():
                raise decided.error()
            case Start():
                self._enter(decided.args)
                return self._start(decided.args)
            case StartAgain() | Resume():
                self._enter(decided.args)
                return self._recover(decided)

    def _enter(self, args: tuple[str, ...]) -> None:
        """Have the arguments of the log admitted, then write down what holds for whatever follows."""
        self.interactive = replace(self.options, args=args).interactive
        before = self.at.before
        if args != self.admitted:
            openings = [o.opening for o in before.openings]
            admit_args(self.options, openings, args, self.screen, self.check)
        if self.handoff is not None:
            self.opened.writer.append(self.handoff)
            failpoint("handoff.after_record")
        for each in (o for o in before.open if o.serves):
            end = End(time=self.clock.now(), call=each.intent.call, how="done", by="recovery", why=messages.SERVED)
            self.opened.writer.append(end)

    # ---- nothing to recover

    def _start(self, args: tuple[str, ...]) -> PreparedStart:
        self.screen.say(self._start_line())
        self.screen.rows(self._still_open())
        asked = self._open_calls()
        gone = [FileGone(time=self.clock.now(), path=name) for name in sorted(self.at.before.files)]
        if gone:
            self.opened.writer.append(*gone)
        chosen = self.options.agent.session_from_args(args)
        session = NewSession("" if self.options.hosted else str(uuid.uuid4()) if chosen is None else chosen)
        words = messages.open_calls_context([(c.call, c.tool, c.input, c.verify) for c in asked])
        agent = self.options.agent
        typed = agent.prompt_from_args(args) if chosen is None else None
        by_hook = "turn_started" in agent.capabilities.speaks
        if words and typed and not by_hook and not self.interactive:
            place = self._place(None)
            prompt = f"{typed}\n\n{words}"
            create_session(place, prompt)
            return PreparedStart(ResumeSession(place.session, prompt), args, {}, asked=asked)
        return PreparedStart(session, args, {}, asked=asked, context=words)

    def _open_calls(self) -> tuple[AskedCall, ...]:
        """What earlier sessions left open: an equal call is refused in this one too, until something looks (I8)."""
        state = self.at.before
        if not state.open:
            return ()
        from wal_agent.recovery.inflight import asked_calls, group_calls
        from wal_agent.recovery.project_rules import load_all

        rules = load_all(self.options.workspace).of(tools_of(self.options.agent.name))
        moved = self.at.lost.workspace, str(self.options.workspace)
        open = [o for o in state.open if not o.serves]
        verdicts = self.case.verdicts(Leftovers(), False, self.done)
        cd = self.options.agent.capabilities.passes_cd
        return asked_calls(group_calls(open, (), self.at.calls, verdicts, rules, moved, cd))

    def _still_open(self) -> list[str]:
        """A line on each call that earlier sessions left open."""
        state = self.at.before
        said = {a.call: one_line(a.because, 120) for a in state.answers}
        calls = [o for o in state.open if not o.serves]
        job = self.options.settings.job_options
        texts = [
            messages.still_open(n := o.intent.call, name_calls([o]), said.get(n, ""), job)
            for o in calls[:MAX_OPEN_LINES]
        ]
        if len(calls) > MAX_OPEN_LINES:
            texts.append(messages.more_calls(len(calls) - MAX_OPEN_LINES))
        return [row("open", text) for text in texts]

    def _start_line(self) -> str:
        settings = self.options.settings
        if settings.origin:  # the first line has named the bucket
            return f"job {settings.job}, saved to that bucket"
        only_here = "survives a crash, not the loss of this disk; use --bucket for another place"
        return f"job {settings.job}, saved to {settings.bucket} ({only_here})"

    # ---- recovery

    def _put_tree_back(self) -> None:
        """Behind the end of leftovers, which must not write into it, and before anything looks at it again."""
        began = self.clock.boot()
        self._require_unused()
        with self.screen.waiting_for("the files of this folder to be put back"):
            self.done = self.tree.carry_out(self.opened.blobs, self.clock.now(), self.screen.say)
        if self.done.put_back:
            self.seconds["tree"] = round(self.clock.boot() - began, 3)
        self.check()

    def _require_unused(self) -> None:
        """FolderInUse: another job of this user is at work in the folder, and its files would be replaced."""
        folder, job = self.options.workspace, self.opened.keys.job
        apart = {self.opened.lease.doc.run, *self.at.opening.parents}
        if isinstance(self.tree.decided, Keep):
            return
        if other := job_at_work(runtime_dir(self.options.env), folder, apart):
            raise FolderInUse(
                f"Job {other} is running in {folder}, and the saved files of job {job} would replace what it works on.",
                f"Start this again when that has ended; or in another folder, with --job {job}.",
            )

    def _recover(self, decided: StartAgain | Resume) -> PreparedStart:
        from wal_agent.recovery.inflight import asked_calls
        from wal_agent.recovery.prompt import load_templates

        at, agent, rows = self.at, self.options.agent, self.screen.rows
        home = at.home
        if isinstance(decided, StartAgain) and decided.alert is None:
            self.screen.say(f"job {self.opened.keys.job} {decided.why}")
            self._put_tree_back()
            rows(self._tree_alone())
            return self._start(decided.args)
        alert = decided.alert or "cut_off"
        report = self._report(alert)
        self.screen.say(headline(report))
        rows([fenced_line(report)])
        rows([row("note", one_line(text, 300)) for text in decided.warnings])
        self.check()
        with self.screen.waiting_for("the processes of the old run to end", processes.ENDING):
            ended = processes.end_run_processes(home.run) if home and self.left.lines else []
        named = self.left.named(ended)
        if named:
            rows([stopped_line(named)])
        gone = (
            home is not None
            and lock_state(home.host, self.here, home.run) == "dead"
            and not processes.marked_processes(home.run)
        )
        self._put_tree_back()
        # again: what still ran may have changed something, or ended by itself
        left = replace(self.left, lines=tuple(ended)) if ended else Leftovers()
        verdicts = self.case.verdicts(left, gone, self.done)
        facts = self.case.prompt_input(decided, verdicts, named, self.done)
        if facts.handed is not None:
            facts = replace(facts, handed=self._with_transcript(facts.handed))
        verify = {call: "; ".join(c.verify) for c in facts.calls for call in c.calls}
        verdicts = tuple(msgspec.structs.replace(v, verify=verify.get(v.call, "")) for v in verdicts)
        templates = load_templates(self.options.workspace, self.options.env)
        rows([row("note", one_line(text, 300)) for text in (*templates.problems, *facts.work.problems)])
        self._emit_checkpoint(facts.work)
        place = self._place(decided)
        if isinstance(decided, Resume):
            prompt, restored = self._restore(place, decided, facts, verdicts, templates)
        else:
            prompt, restored = self._begin_again(place, decided, facts, templates), None
            rows(self._tree_alone())
        rows([*lost_lines(facts.lost), *in_flight_lines(facts.calls), *unannounced_lines(facts.unannounced)])
        self._record(alert, verdicts, prompt, named, restored)
        apart = self.options.hosted and restored is None  # who talks to the agent opens a session of their own
        place_words = agent.name if apart else f"{agent.name} in session {place.session[:8]}"
        if agent.capabilities.hookless:
            rows([row("starting", "the command again", self._elapsed(), "in all")])
        else:
            rows([resuming_line(place_words, self._elapsed())])
        # A person who is there says what is next, and reads the notice first: no turn begins that nobody asked for.
        waits = bool(restored) and self.interactive and not self.typed and alert not in ("paused", "handoff")
        speaks, injects = agent.capabilities.speaks, agent.capabilities.inject_prompt is not None
        by_hook = apart or (waits and not injects and "turn_started" in speaks)
        return PreparedStart(
            NewSession("") if apart else ResumeSession(place.session, prompt, asked=waits),
            decided.args,
            dict(at.before.session_files(agent.main_file)) if restored else {},
            verdicts,
            harmless_calls(facts.calls),
            asked_calls(facts.calls),
            context=prompt if by_hook else "",
            repeated=self.repeated,
            exact=restored.kept / EXACT if restored else None,
        )

    def _with_transcript(self, handed: HandedOver) -> HandedOver:
        """Write what the agents before said and did; where that cannot be, a row says so."""
        from wal_agent.conversation.handoff import write_transcript

        folder = state_dir(self.options.env) / "jobs" / self.opened.keys.job / "transcripts"
        drop_old_restores(folder)
        files = {name: AGENTS[name].main_file for name in (handed.before, *self.at.before.shelf) if name in AGENTS}
        folder /= f"{self.at.opening.epoch:06d}"
        written = write_transcript(folder, self.at.before, files, self.opened.blobs)
        if written.parts:
            self.screen.rows([row("transcript", f"of {', '.join(written.agents)}: {written.parts[0].parent}")])
        if written.problem:
            self.screen.rows([row("note", one_line(written.problem, 300))])
        return replace(handed, parts=written.parts, told=written.agents)

    def _emit_checkpoint(self, work: WorkSoFar) -> None:
        for why in work.problems:
            self.options.emit(CheckpointFailed(why))
        if work.lines:
            self.options.emit(CheckpointRestored(work.number, work.age, work.rebuilt))

    def _tree_alone(self) -> list[str]:
        """The rows of a working tree that no session stands beside."""
        if not self.done.put_back:
            return []
        return [
            row("restored", tree_words.tree_summary(self.done), self.seconds["tree"]),
            *tree_words.tree_lines(self.done),
        ]

    def _elapsed(self) -> float:
        return self.clock.boot() - self.began

    def _report(self, alert: Alert) -> Report:
        return Report(
            job=self.opened.keys.job,
            alert=alert,
            old_host=self.at.lost.host.name,
            new_host=self.here.name,
            stopped=self.at.before.time,
            now=self.clock.now(),
            fenced_in=self.clock.now() - self.at.opening.time,
            handed=(at.before, at.agent) if (at := self.at.before.handoff) and alert == "handoff" else None,
            over=self.at.opening.cause == "closed" and alert != "unsettled",
        )

    def _place(self, decided: StartAgain | Resume | None) -> SessionTarget:
        jobs = state_dir(self.options.env) / "jobs" / self.opened.keys.job / "pre-restore"
        drop_old_restores(jobs)
        kept = jobs / f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(self.clock.now()))}-{self.at.opening.epoch}"
        session = decided.session if isinstance(decided, Resume) else str(uuid.uuid4())
        foreign = self._whose(session).foreign(self.opened.keys.job)
        return SessionTarget(self.options.agent, session, self.options.workspace, self.options.env, kept, foreign)

    def _whose(self, session: str) -> SessionOwner:
        return SessionOwner(state_dir(self.options.env), session, self.options.workspace)

    def _restore(
        self,
        place: SessionTarget,
        decided: Resume,
        facts: PromptInput,
        verdicts: tuple[Verdict, ...],
        templates: Templates,
    ) -> tuple[str, Restored]:
        from wal_agent.recovery.prompt import estimate_tokens

        prompts: list[str] = []
        began = self.clock.boot()
        pending = self._unseen_messages()

        def prompt_for(reconciled: Reconciled) -> str:
            told = replace(facts, timers=recovery_input.lost_timers(self.at, self.options.agent, reconciled))
            if self._is_silent(told, reconciled, pending):
                prompts.append("")
                return ""
            said = self._repeat_messages(pending, reconciled.pieces)
            told = replace(told, beside=estimate_tokens(said))
            prompt = recovery_input.write_prompt(
                told, reconciled, self.at, self.options.agent, self.options.args, templates
            )
            prompts.append((prompt + said).rstrip())
            return prompts[-1]

        effects = self.case.effects(self.done)
        calls = logged_calls(self.at, decided.finished, self.opened.blobs, {v.call: v for v in verdicts}, effects)
        if (
            journal := place.agent.capabilities.journal
        ):  # the database here may have more of the session than its journal
            journal.update(place.session, place.workspace, place.env)
        if place.foreign:
            self._whose(place.session).give(NOBODY)  # a crash in between must not make them ours
        with self.screen.waiting_for("the session to be put back"):
            files = self.at.before.session_files(place.agent.main_file) or blank_files(place.agent, place.session)
            restored = restore(place, files, self.opened.blobs, calls, prompt_for, self.clock.now())
        if place.foreign:
            self._whose(place.session).give(self.opened.keys.job)
        done = restored.reconciled
        self.seconds["session"] = round(self.clock.boot() - began, 3)
        took = sum(self.seconds.values())
        tree = tree_words.tree_summary(self.done)
        back = [
            restored_line(place.session, done.messages, restored.size, tree, took),
            *tree_words.tree_lines(self.done),
        ]
        if self.options.agent.capabilities.hookless and len(self.at.before.files) <= 1:  # no more than wal-agent's note
            back = self._tree_alone()
        self.screen.rows(
            [
                *back,
                *(
                    [row("kept", "this machine had more of the session than the log; it was kept")]
                    if restored.extended
                    else []
                ),
                *(row("mended", text) for text in done.repairs),
                *([left_out_line(restored.left_out)] if restored.left_out else []),
                *(
                    [put_back_line(count, self.options.agent.name)]
                    if (count := recovery_input.finished_put_back(done, self.at))
                    else []
                ),
            ]
        )
        return prompts[-1], restored

    def _begin_again(self, place: SessionTarget, decided: StartAgain, facts: PromptInput, templates: Templates) -> str:
        """No session was saved: a new one, which holds what is known and the task."""
        from wal_agent.recovery.prompt import estimate_tokens, render_prompt

        repeated = self._repeat_messages(self._unseen_messages(), ())
        facts = replace(facts, beside=estimate_tokens(repeated))
        asked = self.options.agent.prompt_from_args(decided.args)
        if facts.handed is not None:
            words = recovery_input.handed_words(self.at)
            prompt = recovery_input.add_newest_words(render_prompt(facts, templates), words, asked, ())
            said = f"a session of {self.options.agent.name}, with what is known"
        else:
            kept = fetch_payload(self.opened.blobs, decided.prompt) or b""
            prompt = render_prompt(replace(facts, task=recovery_input.task_text(kept, asked or "")), templates)
            said = "the session had not been saved yet; the task begins again, with what is known"
        prompt = (prompt + repeated).rstrip()
        if self.options.hosted:
            said = "the session had not been saved yet"
        else:
            create_session(place, prompt)
        self.screen.rows([row("new", said)])
        return prompt

    def _is_silent(self, facts: PromptInput, reconciled: Reconciled, pending: dict[MessageAt, Message | None]) -> bool:
        """Whether the conversation goes on as it is: the agent need be told nothing, and a person is there to say what
        is next, or says it with this start. A turn that was cut off with no person there needs a word to go on."""
        args, agent = self.options.args, self.options.agent
        lost, new = recovery_input.words_to_give(facts, reconciled, self.at, agent, args)
        ended = self.at.before.ended
        left = ended is not None and ended.cls == "interrupted"  # by the person, in a turn that a No or an Esc ended
        if left or (facts.turn_completed and self.options.go_on):
            new = agent.prompt_from_args(args) or ""  # asked for again, if need be in the same words
        self.typed = new
        steps = self.at.before.undecided_steps
        quiet = recovery_input.is_quiet(facts, reconciled) and not pending and not steps and lost in ("", new)
        return quiet and (self.interactive or bool((facts.turn_completed or left) and new))

    def _unseen_messages(self) -> dict[MessageAt, Message | None]:
        """Those that the lost run gave to the agent, each with its words, if these can be had within a few seconds."""
        driver = self.driver
        if driver is None or not self.at.before.messages:
            return {}
        from wal_agent.inbox import identity_of
        from wal_agent.supervise.inbox import unseen

        if not (lost := unseen(self.at.before)):
            return {}
        wanted = {identity_of(m.sender, m.id): m for m in lost}

        def fetch() -> Sequence[Message]:
            with suppress(WalAgentError, OSError):
                return driver.fetch(lambda identity: identity not in wanted)
            return ()

        none: Sequence[Message] = ()
        found = {m.identity: m for m in call_with_timeout(MESSAGES_WAIT, fetch, none)}
        return {at: found.get(identity) for identity, at in wanted.items()}

    def _repeat_messages(self, pending: dict[MessageAt, Message | None], session: Pieces) -> str:
        """The words on messages that `session`, a restored main file, does not have; what it has was seen, whether its
        words can be had or not. One without words is given by the inbox once its carrier is back."""
        if not pending:
            return ""
        from wal_agent.supervise.inbox import repeat_messages

        marks = {at: messages.message_mark(at.id).encode() for at in pending}
        has = {at for line in map(bytes, session) for at, mark in marks.items() if mark in line}
        now = self.clock.now()
        if has:
            self.opened.writer.append(*(MessageSeen(time=now, sender=at.sender, id=at.id) for at in has))
        repeated = {at: message for at, message in pending.items() if at not in has and message is not None}
        lost, self.repeated = [*repeated.values()], tuple(repeated)
        if lost:
            self.screen.rows([row("messages", messages.told_again_line(len(lost)))])
        return f"\n{repeat_messages(lost)}" if lost else ""

    def _record(
        self,
        alert: Alert,
        verdicts: tuple[Verdict, ...],
        prompt: str,
        ended: list[str],
        restored: Restored | None,
    ) -> None:
        home = self.at.home
        put_back = restored.reconciled.put_back if restored else 0
        failpoint("recovery.before_record")
        ticket = self.opened.writer.append(
            Recovery(
                time=self.clock.now(),
                from_epoch=home.epoch if home else 0,
                verdicts=verdicts,
                told=redact(prompt)[:MAX_LOGGED_PROMPT],
                leftovers=tuple(redact(text)[:200] for text in ended[:20]),
                restored=restored.files if restored else (),
                put_back=put_back,
                seconds={**self.seconds, "all": round(self._elapsed(), 3)},
                left_out=tuple(one_line(name, 60) for name in restored.left_out[:20]) if restored else (),
            )
        )
        with self.screen.waiting_for("the bucket, to record the recovery", RECORD_DEADLINE):
            word = ticket.wait(RECORD_DEADLINE)
        if word == "undecided":
            raise Unavailable("The recovery could not be recorded: the bucket cannot be reached.", "Try again later.")
        failpoint("recovery.after_record")
        states = {o.intent.call: o.state for o in self.at.before.open}
        self.options.emit(
            Recovered(
                from_epoch=home.epoch if home else 0,
                old_host=home.host.name if home else "",
                stopped=self.at.before.time,
                alert=alert,
                findings=tuple(v.finding for v in verdicts),
                put_back=put_back,
                seconds=self._elapsed(),
                trace=home.trace if home else "",
                states=tuple(states.get(v.call, "open") for v in verdicts),
            )
        )


def prepare_start(
    options: RunOptions,
    opened: OpenedJob,
    here: Host,
    clock: Clock,
    screen: Screen,
    check: Callable[[], None],
    driver: Driver | None = None,
    admitted: tuple[str, ...] = (),
) -> PreparedStart:
    """Decide what this start is, and make everything ready for the agent. `admitted`: arguments of the log that were
    vouched for before the job was opened."""
    return Preparation(options, opened, here, clock, screen, check, driver, admitted).go()
