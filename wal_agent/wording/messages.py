"""Every sentence of the recovery story: what people read on the screen, and what the agent reads. Pure.

The other modules decide and pass facts; foreign text arrives quoted. Tests compare with these functions, so a sentence
can be reworded here alone. The frame of the agent's prompt is in the templates beside this file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from wal_agent.calls.quote import inline, show_input
from wal_agent.errors import BucketError, Denied
from wal_agent.records import Finding
from wal_agent.text import clock_time, command, duration, moment, plural

if TYPE_CHECKING:
    from wal_agent.calls.checks import Shown

CONTEXT_CALLS = 5  # calls that a new session reads about

# ---- why a tool was denied, for the agent ----------------------------------------------------------------------------

REFUSED = "wal-agent did not run this:"
_STOP = "Nothing was changed. Do not try other ways; stop here and say so."
_WIND_DOWN = "Nothing was changed. Start nothing new; say in one line where you are and stop."


def deny_unsaved(seconds: float, trouble: BucketError | None = None) -> str:
    """Deny: the intent could not be saved for `seconds` (0: at once). `trouble`: what the bucket said."""
    since = f" for {seconds:.0f} s" if seconds >= 1 else ""
    return f"{REFUSED} its intent could not be saved ({bucket_away(trouble)}{since}). {_STOP}"


def bucket_away(trouble: BucketError | None) -> str:
    """Why a bucket takes nothing, without a word of its own: an agent may read this."""
    if isinstance(trouble, Denied):
        return "bucket refuses access: credentials, permission or clock"
    return f"bucket unwritable: {trouble.why}" if trouble is not None and trouble.why else "bucket unreachable"


def deny_repeated(tool: str, time: float, call: int, compaction: int) -> str:
    """Deny, once: the agent did the same before its conversation was compacted."""
    return (
        f"{REFUSED} you ran this very call ({tool}, call #{call}) at {clock_time(time)} UTC, and it was done; that was "
        f"before your conversation was compacted (compaction {compaction}). Nothing was changed now. To see its "
        f"result: `wal-agent recall --call {call}`. If it must run a second time, make the same call again."
    )


def deny_done(tool: str, time: float, call: int, result: str) -> str:
    """Deny, once: the agent did the same in the turn that was cut off. `result`: of that call, quoted."""
    return (
        f"{REFUSED} it was done before the run ended, in this same turn ({tool}, call #{call}, {clock_time(time)} "
        f"UTC). Its result: {result}. Nothing was changed now. Go on with what is left. All of it: "
        f"`wal-agent recall --call {call}`. If it must run a second time, make the same call again."
    )


WAS_CUT = "stopped before it had ended"
RUNS_NOW = "begun and still running"
LOST = "in flight when the run was lost"


def deny_in_flight(tool: str, call: int, look: str, behind_cd: str = "", known: str = LOST) -> str:
    """Deny: the agent repeats an open call before anything has looked whether it happened. `look`: what to run to find
    out, "" where nothing is named; `behind_cd`: the same, where a model may mistake it for the call; `known`: one of
    the above. No word invites to repeat."""
    maybe = f"it may have happened already ({tool}, call #{call}, {known}). Nothing was changed now."
    if look:
        check = f"begins with `cd`: {behind_cd}" if behind_cd else f"is {look}"
        return (
            f"{REFUSED} {look} has to run first, as {maybe} Call your tool to find out whether it happened; "
            f"the command that only checks {check}"
        )
    return (
        f"{REFUSED} {maybe} Before anything else, call your tool to find out whether it happened, then "
        f'`wal-agent settle {call} --because "WHAT SHOWED IT"`'
    )


def deny_shown(tool: str, call: int, shown: Shown) -> str:
    """Deny: a check has shown that the call happened."""
    said = f"It printed: {inline(shown.output, 300)}." if shown.output else "It ended with 0."
    return (
        f"{REFUSED} it happened already ({tool}, call #{call}). Your check "
        f"{inline(shown.command, 160)} (call #{shown.call}) shows it. {said} Nothing was changed now. Go on with what "
        "is left. If the check is wrong, say so and stop: a person decides."
    )


def deny_loop(tool: str, times: int) -> str:
    """Deny, once: the agent makes one call again and again, and each result is the same."""
    return (
        f"{REFUSED} you made this very call ({tool}) {times} times in a row, and its result was the same each time. "
        "Nothing was changed now. Go on with the task in another way, or end your turn and say what is missing."
    )


def look_first(calls: Sequence[tuple[int, str, str]]) -> str:
    """At the end of a turn, in place of it, once: number, tool and named check ("" for none) of each open call at whose
    effect nothing has looked."""
    lines = [
        f"- call #{call} ({tool}): "
        + (f"run {look} now" if look else "look now, with your tools")
        + f', then `wal-agent settle {call} --because "WHAT SHOWED IT"`'
        for call, tool, look in calls[:CONTEXT_CALLS]
    ]
    head = "[wal-agent] This turn is not over: it is not known whether these calls took effect, and nothing has looked."
    return "\n".join([head, *lines, *_others(calls), "If that does not show it, say so and stop. Repeat nothing."])


DENY_FENCED = f"{REFUSED} another host has taken this job over, and this run is being ended. {_STOP}"
DENY_LATE = f"{REFUSED} its lease could not be renewed in time (bucket unreachable). {_STOP}"
DENY_DRAINING = f"{REFUSED} this machine is being given up, and the job goes on elsewhere from here. {_WIND_DOWN}"
DENY_PAUSING = (
    f"{REFUSED} the job is being paused; this run ends now, and goes on by itself after the pause. {_WIND_DOWN}"
)
DENY_CALLER = f"{REFUSED} the run that asked for this task has ended, or its job is another's by now. {_STOP}"
DENY_BUDGET = (
    f"{REFUSED} the budget of calls for this task is used up. Call no more tools: answer now with what you have found, "
    "and say what is missing."
)
DENY_HUNG = f"{REFUSED} it came after too long a silence, and this run is being ended. {_STOP}"
DENY_ENDED = f"{REFUSED} this run has ended. {_STOP}"


def not_loaded(seconds: float) -> str:
    return (
        f"wal-agent: the session was not loaded within {seconds:.0f} s, so the model was not asked: it would have "
        "known neither the conversation nor what became of the call in flight. Once the conversation stands above, "
        'say "go on".'
    )


def all_of(commands: Sequence[str]) -> str:
    """How to verify a call by several commands."""
    return "; ".join([*commands, "each in a call of its own"] if len(commands) > 1 else commands)


# ---- a recovery on the screen ----------------------------------------------------------------------------------------

_ENDED: Final[dict[str, str]] = {
    "crash": "was cut off",
    "cut_off": "was cut off",
    "preempted": "stopped and was saved",
    "paused": "was paused",
    "unsettled": "ended with open calls",
    "over": "had ended",
}
VERIFYING = "the agent is asked to verify"
WOULD_VERIFY = "the agent would be asked to verify"
WOULD_STOP = "It is still running; a start would stop it."
HOME_FOLDER = "this folder is your home folder or above it; nothing is put back here"
NO_REPOSITORY = "no repository was made: git cannot read the .git that is here"


def headline(
    job: str, alert: str, over: bool, old: str, new: str, stopped: float, now: float, handed: tuple[str, str] | None
) -> str:
    """The first line. `over`: the job was closed, and is continued as asked. `handed`: from agent to agent."""
    if handed is not None:
        ended, verb = f"was {handed[0]}'s, and stopped", f"Handing it to {handed[1]}"
    elif over or alert == "over":
        ended, verb = _ENDED["over"], "Continuing its session"
    else:
        ended, verb = _ENDED[alert], "Continuing" if alert == "paused" else "Recovering"
    ago = f"{duration(now - stopped)} ago"
    return f"job {job} {ended} on {old} at {moment(stopped, stopped, exact=True, whole=True)}, {ago}. {verb} on {new}."


def handed_over_why(before: str) -> str:
    return f"is handed over from {before}"


def would_replace(shown: str) -> str:
    """In `recover --dry-run`. `shown`: "2 files (a, b)"."""
    return f"{shown} in this folder: no commit has them, and the saved files would replace them; they would be kept"


def would_take_over(user: str, host: str, folder: str) -> str:
    """In `recover --dry-run`, of a job that another person ran last."""
    return (
        f"{user} ran this job last, on {host}, in {folder}: a start would ask before it takes the job over, "
        "and without a terminal it would need --take-over"
    )


def locked_out(old_host: str) -> str:
    """`old_host`: "" for this one."""
    return f"{old_host or 'the old run'} can no longer act on this job"


def stopped(count: int, shown: str) -> str:
    noun = "leftover process" if count == 1 else "leftover processes"
    return f"{count} {noun} of the old run ({shown})"


def ended_in_background(calls: str) -> str:
    """A drain, or any end of a run: what ended with it. The lines on open calls say what is to be done."""
    return f"what still ran ended with this run: {calls}"


def put_back(count: int, agent: str) -> str:
    return f"{plural(count, 'finished call')} that {agent} had not written to its session yet"


def found(finding: Finding, because: str) -> str:
    """`because`: the evidence in a sentence, or who looks."""
    return f"{finding.replace('_', ' ')}: {because}"


def unlogged(cls: str, how: str) -> str:
    return f"{cls}  {how}; it ran before it was logged"


def more_calls(count: int) -> str:
    return f"and {count} more: see wal-agent log"


def lost(count: int, shown: str, more: int) -> str:
    rest = f", and {more} more" if more > 0 else ""
    return f"file changes that may not be here, of {plural(count, 'call')}: {shown}{rest}"


def lost_note(elsewhere: bool) -> str:
    where = "completed on the lost host" if elsewhere else "completed"
    return f"{where}; its file changes may not be in this workspace"


def free_in(job: str, seconds: float, host: str) -> str:
    """While a start waits for the lease of a machine that is silent."""
    return f"job {job} is free in {max(0.0, seconds):.0f} s if {host} is dead; Ctrl-C to leave"


def continue_with(command: str) -> str:
    """At a terminal, after a run that came to its end."""
    return f"to continue this session: {command}"


# ---- a run's end on the screen ---------------------------------------------------------------------------------------


def to_settle(calls: str, first: int, job: str, checked: bool) -> str:
    """`calls`: by report.name_calls; `job`: the options that name it; `checked`: at the next start."""
    who = "The next start checks whether it happened; if you know" if checked else "Check whether it happened, then"
    return f"open: {calls}. {who}: {command(f'ack {first}', job)} --done (or --not-done)"


def still_open(call: int, named: str, because: str, job: str) -> str:
    """At the start of a new session. `named`: by report.name_calls; `because`: the agent's words, "" for none; `job`:
    the options that name it."""
    answered = f"the agent says: {because}" if because else "nothing has shown whether it took effect"
    return f"call {named} is still open ({answered}). Confirm it: {command(f'ack {call}', job)} --done (or --not-done)"


SERVED = "it was meant to keep running, and ended with its run"


def open_calls_context(calls: Sequence[tuple[int, str, bytes | None, tuple[str, ...]]]) -> str:
    """For the model, at the start of a new session: number, tool, input and checks of each call that earlier sessions
    left open; "" for none."""
    if not calls:
        return ""
    lines = [
        f"- #{call} {inline(tool, 60)} {inline(show_input(tool, input), 160)}"
        + (f": look first with {' and '.join(inline(each, 160) for each in verify)}" if verify else "")
        for call, tool, input, verify in calls[-CONTEXT_CALLS:]
    ]
    these = "this call" if len(calls) == 1 else f"these {len(calls)} calls"
    head = f"[wal-agent] It is not known whether {these} of earlier sessions took effect. Look before you repeat one:"
    return "\n".join([head, *lines, *_others(calls)])


def _others(calls: Sequence[object]) -> list[str]:
    """A line on the calls that are not listed, if there are any."""
    more = len(calls) - CONTEXT_CALLS
    return [f"- {more} more: see `wal-agent status`"] if more > 0 else []


def left_open(calls: str, follows: bool) -> str:
    """`follows`: the job is started again by itself."""
    next_step = "the next start will check whether it happened" if follows else "harmless to repeat"
    return f"open: {calls}; {next_step}."


# ---- why nothing is started ------------------------------------------------------------------------------------------

OTHER_NAME = "Choose another name with --job."
OTHER_FOLDER = "Run it there, or choose another name with --job."
OTHER_REPOSITORY = "Run it in that repository, or choose another name with --job."
SETTLE_EACH = "Settle each with: wal-agent ack N --done (or --not-done)"
SEE_CRASHES = "See: wal-agent log --crashes"
NO_SESSION_ID = "The log names a session by an id that no agent gives. Nothing was run."
TAKE_OUT = "Take out what was saved, with: wal-agent restore --to DIR"


def other_agent(owner: str, here: str) -> str:
    return f"This job belongs to {owner}, not to {here}. Nothing was run."


def not_from(owner: str, named: str) -> str:
    return f"This job is {owner}'s, not {named}'s. Nothing was run."


def other_command(then: str, now: str) -> str:
    return f"This job was last run with {then}, not with {now}. Nothing was run."


def other_folder(owner: str, here: str) -> str:
    return f"This job belongs to the folder {owner}, not to {here}. Nothing was run."


def other_repository(owner: str, here: str) -> str:
    return f"This job belongs to another repository ({owner}), not to the one here ({here}). Nothing was run."


def crash_loop(count: int, minutes: float, place: str, ways: str) -> str:
    return f"{count} crashes in {minutes:.0f} minutes{place} ({ways}). Stopped; a person is needed."


def stuck(call: str, way: str) -> str:
    """`call`: "" for none."""
    where = f"in {call}" if call else "at the same place of its session, with no tool call in between"
    return f"It died twice in a row {where} ({way}). Not tried a third time; a person is needed."


def stuck_hint(call: int | None) -> str:
    if call is None:
        return "See: wal-agent log --crashes. Then go on at a terminal, or begin anew with --fresh."
    return f"Check whether it happened, then: wal-agent ack {call} --done (or --not-done); or at a terminal."


def halted(calls: str) -> str:
    return f"The outcome of open calls is unknown ({calls}). Stopped, as --on-ambiguity says; a person is needed."


def would_forget(calls: str) -> str:
    return f"--fresh would forget open calls ({calls})."


# ---- why it resumes, or starts again ---------------------------------------------------------------------------------

NOTHING_TO_RECOVER = "nothing to recover"
NEW_AS_ASKED = "a new session, as asked"
WAS_OVER = "its last run had come to its end"
CONTINUED = f"{WAS_OVER}; continuing it, as asked"
NONE_OPEN = "no call was open"
NOT_KNOWN = "which calls were open is not known"


def with_calls(end: str, count: int) -> str:
    return f"{end} with {plural(count, 'open call')}"


def nothing_recorded(end: str) -> str:
    return f"{end} before anything was recorded: starting it again"


def not_captured(why: str) -> str:
    return f"{why}; its session was not saved yet: starting it again"


def paused_on(host: str, reason: str) -> str:
    return f"was paused on {host}" + (f" ({reason})" if reason else "")


def died_on(host: str, way: str) -> str:
    return f"died on {host} ({way})"


def given_up_on(host: str, why: str) -> str:
    return f"stopped and was saved on {host}" + (f": {why}" if why else "")


def ended_on(host: str) -> str:
    return f"had ended on {host}"


def incomplete_on(host: str) -> str:
    return f"ended on {host} without completing its turn"


def cut_off_on(host: str) -> str:
    return f"was cut off on {host}"


def other_version(agent: str, then: str, now: str) -> str:
    return f"{agent} is {now} here; it was {then} when this session was saved."


def steps_left(names: list[str], job: str) -> str:
    """At the end of a run. `job`: the options that name it."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return (
        f"cut off, and not known whether it was done: step {', '.join(names[:3])}{more}. The same `wal-agent step` in "
        f"the next run verifies it; or check it, then: {command(f'ack {names[0]}', job)} --done (or --not-done)"
    )


def summaries_lost(numbers: list[int], job: str) -> str:
    """At the end of a run. `numbers`: its compactions whose summaries say nothing; `job`: the options that name it."""
    which = ", ".join(map(str, numbers))
    return (
        f"the agent compacted its conversation, and the summary is empty (compaction {which}). What was said before is "
        f"kept: {command('recall WORDS', job)}"
    )


def steps_cut_off(shown: list[str], count: int) -> str:
    """`shown`: the first of `count` steps, with their commands."""
    more = f" and {count - len(shown)} more" if count > len(shown) else ""
    which = f"{plural(count, 'step')} {'was' if count == 1 else 'were'} cut off and may have had an effect"
    return (
        f"{which}: {', '.join(shown)}{more}. Type the same `wal-agent step` again: it verifies, runs what was not "
        "done, or says what a person must decide."
    )


# ---- the agent's prompt ----------------------------------------------------------------------------------------------

REPLACES = "This notice replaces each recovery notice before it that you have not answered; a task in one still holds."
TASK = "The task, as it was given:"
TASK_FIRST = f"[wal-agent recovery] {TASK}"  # in front of the notice: a model does first what it read last
TREE_NOT_SAVED = "The working tree was not saved yet: what you see is what is on this machine."
TREE_KEPT = "The working tree was kept as it is."
TREE_UNREAD = "git cannot read the .git of this folder, so no repository was made."
IGNORED_NOT_SAVED = "Ignored files were not saved either."
MIXED_FINDINGS = "The evidence differs between these identical calls."
EARLIER = "Found at the start before: "
_PROMPT_FINDING: Final[dict[Finding, str]] = {
    "completed": "completed.",
    "not_started": "not started.",
    "partial": "it did not finish.",
    "unknown": "unknown.",
}


def what_happened(
    alert: str, same_host: bool, old: str, new: str, stopped: float, now: float, pause: str, given_up: str
) -> str:
    """`pause`, `given_up`: see `paused` and `reason_given_up`."""
    at, later = f"{clock_time(stopped)} UTC", duration(now - stopped)
    where = f"You continue on the same machine ({new}), {later} later."
    if not same_host:
        where = f"You are now on {new}, {later} later."
    match alert, same_host:
        case "handoff", _:
            place = f"You are on {new}" if same_host else f"It ran on {old}, and you are on {new}"
            return (
                f"This job was the work of another agent until {at}; from now on it is yours. {place}, {later} later."
            )
        case "unsettled", _:
            return f"Your last run ended at {at} with tool calls in flight. {where}"
        case "over", _:
            return f"Your last run ended at {at}. {where}"
        case "paused", _:
            return f"{pause} {where}"
        case "preempted", True:
            return f"Your run was stopped, with everything saved, at {at}{given_up} {where}"
        case "preempted", False:
            ended = "was shut down, with everything saved,"
            return f"The machine that you worked on ({old}) {ended} at {at}{given_up} {where}"
        case _, True:
            return f"Your run was cut off at {at}. {where}"
        case _:
            return f"The machine that you worked on ({old}) stopped at {at}. {where}"


def reason_given_up(why: str, calls: bool) -> str:
    """The rest of the sentence. `calls`: some were in flight."""
    if not why:
        return "."
    return f": {why}." + (" What still ran then was interrupted." if calls else "")


def paused(at: float, until: str, reason: str, early: bool) -> str:
    why = f", for this reason: {reason}" if reason else ""
    ending = f" until {until}" if until else ""
    return f"The job was paused at {clock_time(at)} UTC{ending}{why}." + (
        " The pause was ended early." if early else ""
    )


PAUSED = "The job was paused."


NOTICE: Final = "[wal-agent recovery]"  # how each template of a notice begins
WITH_START: Final = "The user's message with this start, to follow after the above:"
LOST_WORDS: Final = "Your conversation was cut off before the user's last message was saved in it."
RESULT_NOT_SAVED: Final = "its result was not saved"
ENDED_UNRUN: Final[dict[str, str]] = {  # what is put back into the conversation as the result of such a call
    "refused": "it was refused, so it did not run",
    "verified": "the evidence showed what became of it",
    "resolved": "a person resolved it",
}


def in_flight_heading(count: int) -> str:
    return "One tool call was in flight:" if count == 1 else f"{plural(count, 'tool call')} were in flight:"


def prompt_finding(finding: Finding, because: str) -> str:
    return f"{_PROMPT_FINDING[finding]} {because}".rstrip()


def cut_off_note(finding: Finding, why: str) -> str:
    """What is put back into the conversation as the result of a call in flight."""
    return f"the run was lost while this call was in flight (finding: {finding}). {why}".rstrip()


def begin_with(looks: Sequence[tuple[str, str]]) -> str:
    """The end of a notice. `looks`: `look` and `behind_cd`, as for a refusal, of each call that is to be looked at."""
    if not looks:
        return ""
    look, behind_cd = looks[0]
    command = behind_cd or f"exactly {look}"
    how = f"to find out whether it happened; its command is {command}" if look else "as Next says."
    return f"Begin with a tool call {how}"


def settle_command(calls: tuple[int, ...]) -> str:
    """What the agent runs for a call that stays unknown, "" where it is not asked to."""
    return f'wal-agent settle {calls[0]} --because "WHAT YOU FOUND AND HOW"'


def identical(open_calls: int, issued: int) -> str:
    if issued > open_calls:
        return f" ({open_calls} of {issued} identical calls; which of them is not known)"
    return f" ({open_calls} identical calls)" if open_calls > 1 else ""


def project_rule(rule: str, source: str, why: str) -> str:
    return f"this project's rule {rule} in {source}: {why}"


def own_text_used(why: str) -> str:
    return f"{why}; wal-agent's own text is used."


def not_covered(files: int) -> str:
    """Of files in the folder that a restore left alone."""
    return f"the saved working tree does not cover {plural(files, 'file')} here (not checked out, or not saved)"


def tree_as_saved(time: float) -> str:
    return f"The working tree is as it was saved at {clock_time(time)} UTC, with what was not committed."


# ---- how an asked call ended, in the log -----------------------------------------------------------------------------


def looked(call: int) -> str:
    return f"the agent verified it with #{call}"


def shown_done(shown: Shown) -> str:
    by = f", {inline(shown.source, 60)} reads it so" if shown.source else ""
    said = f"printed {inline(shown.line, 120)}" if shown.line else "ended with 0"
    return f"it happened: {inline(shown.command, 120)} (#{shown.call}{by}) {said}"


# ---- how a run died --------------------------------------------------------------------------------------------------

CRASHES: Final[dict[str, str]] = {
    "killed": "killed",
    "out_of_memory": "killed: out of memory",
    "heap": "JavaScript heap out of memory",
    "hung": "the model did not answer",
    "incomplete": "ended in the middle of a turn",
    "context": "the conversation is too long for the model",
    "": "cut off with its machine or wal-agent",
}


# ---- around a compaction


def before_compaction(task: str, running: str, plan: str) -> str:
    """For the model that writes the summary, where its agent passes words on; one line. Arguments as below."""
    words = ["Keep in the summary, word for word, what the user asked for, the plan, and what is still to be done."]
    if task:
        words.append(f"The user's newest message begins: {task}.")
    if plan:
        words.append(f"Steps of the plan that are not done: {plan}.")
    if running:
        words.append(f"Calls that still run, so that their outcome is not known: {running}.")
    return " ".join(words)


def after_compaction(n: int, task: str, running: str, plan: str, *, lost: bool) -> str:
    """For an agent behind compaction `n` (0: not logged), whose new history lacks `task`, `running` and `plan`, or
    is not known; quoted, empty for none. `lost`: its summary says nothing at all."""
    number = f" (compaction {n})" if n else ""
    how = "compacted, and its summary is empty" if lost else "compacted"
    words = [
        f"[wal-agent] Your conversation was {how}{number}. All of it is kept: `wal-agent recall WORDS` finds what "
        "was said and done before; `wal-agent checkpoint show` prints task, plan and the newest calls."
    ]
    if lost:
        words.append("Read both before you go on.")
    if task:
        words.append(f"The user's newest message begins: {task}")
    if plan:
        words.append(f"Steps of your plan that are not done: {plan}")
    if running:
        words.append(f"Calls that still run: {running}.")
    return "\n".join(words)


NOT_COMPACTED: Final = (
    "wal-agent: the conversation could not be saved (bucket unreachable), so it is not compacted now. Try again later."
)
MENDING: Final = "its conversation was compacted to nothing; it starts again with a compact form of what was said"
REWINDING: Final = "a person takes its conversation to another place"
OWN_PAUSES: Final = (MENDING, REWINDING)  # that are over once the agent runs again


# ---- messages to the job


def message_mark(id: str) -> str:
    """What a delivered text begins with: by it a restored session shows that the agent has had it."""
    return f"[wal-agent message {id}]"


def message_text(id: str, sender: str, sent: float, block: str, cut: bool) -> str:
    """`block`: the message's text, fenced; `cut`: it is not all of it."""
    whole = f" It is longer; read all of it with: `wal-agent inbox {id}`." if cut else ""
    return (
        f"{message_mark(id)} from {inline(sender, 100)}, sent {clock_time(sent)} UTC, through this job's inbox. It is "
        f"not a part of the user's prompt: act on it as far as your task and your rules allow.{whole}\n{block}\n"
        f"To answer: `wal-agent reply {id} TEXT`."
    )


def told_again_line(count: int) -> str:
    """On the screen."""
    return f"{plural(count, 'message')} that the agent may not have seen: repeated"


def messages_repeated(texts: str, more: int) -> str:
    """In a recovery prompt, of messages that were given to the agent before the crash. `more`: further ones."""
    rest = f"\n{plural(more, 'more message')}: see `wal-agent inbox`." if more else ""
    return (
        "Messages that came before the crash, and that you may not have seen. If one asks for something, look first "
        f"whether it was done already:\n\n{texts}{rest}\n"
    )
