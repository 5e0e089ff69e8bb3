"""`wal-agent status`."""

from __future__ import annotations

import os
import sys
import time
from typing import Annotated

import typer

from wal_agent.cli.options import AgentName, AsJson, BucketUrl, JobName, KeyCommand, KeyFile
from wal_agent.cli.screen import lines, say
from wal_agent.recovery.words import moment, size, span, stamp
from wal_agent.redact import redact
from wal_agent.shown import shown

WIDEST = 500  # characters of one row
_LATE = {
    "model": "waiting for the model",
    "approval": "the agent waits for you, or runs what you allowed,",
    "tool": "a tool runs",
    "start": "the agent has not begun",
    "exit": "its turn is over and the agent has not ended",
}


def status(
    agent: AgentName = "gemini",
    bucket: BucketUrl = None,
    job: JobName = None,
    encryption_key_file: KeyFile = None,
    encryption_key_command: KeyCommand = None,
    watch: Annotated[bool, typer.Option("--watch", help="Look again and again, until Ctrl-C.")] = False,
    every: Annotated[float, typer.Option("--every", help="Seconds between two looks of --watch.")] = 2.0,
    json: AsJson = False,
) -> None:
    """Who holds the job, what is it doing, what is not saved or not settled yet, and how often it crashed.

    Where the log is damaged it shows what the log says up to there; the exit code is 73.
    """
    from json import dumps

    import msgspec

    from wal_agent import notify
    from wal_agent.cli.options import place
    from wal_agent.cli.view import look
    from wal_agent.errors import Damaged

    at = place(agent, bucket, job, encryption_key_file, encryption_key_command)
    if watch:
        from wal_agent.cli.watching import watching

        watching(at, every, os.environ, json=json)
    view = look(at.bucket, at.keys, os.environ, at.key_id)
    if json:
        sys.stdout.write(dumps(msgspec.to_builtins(view)) + "\n")
    elif view.state == "none":
        say(f"no job {view.job} in {view.bucket} yet. Start one with: wal-agent run AGENT")
    else:
        trouble = notify.trouble(os.environ)
        lines([*table(view), *([f"{'messages':<11} {shown(trouble, WIDEST)}"] if trouble else [])])
    if view.damage:
        raise Damaged(view.damage)


def table(view: object) -> list[str]:
    from wal_agent.cli.view import View
    from wal_agent.recovery.died import how

    assert isinstance(view, View)
    now = time.time()
    words = {
        "running": "running",
        "cut_off": "cut off, not recovered yet; the next `wal-agent run` recovers it",
        "closed": "ended",
        "released": "given up in good order; the next `wal-agent run` carries on",
        "unlocked": "unlocked by a person",
        "none": "none",
    }
    if view.state == "paused":
        until = moment(view.until, view.until - view.left, exact=view.left < 600)
        words["paused"] = f"paused until {until} UTC (in {span(view.left)}): {view.reason or 'no reason was given'}"
    where = f"{view.host} pid {view.pid}, epoch {view.epoch}"
    if view.state == "running":
        where += f", up {span(now - view.started)}, heartbeat {span(view.heartbeat_age)} ago"
    rows = [("job", f"{view.job:<19} {view.bucket}")]
    if view.state == "running":
        rows.append(("state", f"{words[view.state]:<19} {where}"))
    else:
        rows += [("state", words[view.state]), ("last on", where)]
    if view.reason and view.state != "paused":
        rows.append(("reason", view.reason))
    if view.state == "released" and view.until:
        rows.append(("", f"its pause was over at {stamp(view.until)} UTC"))
    if view.state == "running" and view.waiting is None and view.heartbeat_age > view.ttl / 2:
        rows.append(("", f"if {view.host} is off for good: wal-agent unlock --epoch {view.epoch} --now"))
    if view.spool:
        rows.append(("spool", f"{view.spool} on {view.host} may hold what the bucket does not"))
    if view.key:
        rows.append(("encrypted", f"with key {view.key}"))
    if view.state == "running":
        phase = f"{view.phase}, {span(view.phase_age)}" if view.phase_age else view.phase
        rows.append(("phase", f"{phase:<19} {view.tool}".rstrip()))
        for late in view.late:
            rows.append(("", f"{_LATE[late.what]} since {span(late.seconds)}{late.tool and ': ' + late.tool}"))
    waiting = "nothing waiting"
    if view.waiting is None:
        waiting = "what waits is known on its own machine only" if view.state == "running" else ""
    elif view.waiting.bytes:
        waiting = f"{size(view.waiting.bytes)} not saved yet, the oldest for {span(view.waiting.age)}"
        if view.waiting.spooled:
            waiting += f"; spooling: {view.waiting.spooled} segments are on this machine's disk only"
    last = view.locked or f"last record {span(now - view.last_record)} ago, {waiting}".rstrip(", ")
    rows.append(("log", f"{'record ' + str(view.record):<19} {last}"))
    if view.session:
        rows.append(
            (
                "session",
                f"{view.session[:8]:<19} {view.agent} {view.agent_version}, {view.calls} tool calls, "
                f"{size(view.session_bytes)} saved",
            )
        )
    if view.crashes:
        rows.append(("crashes", str(len(view.crashes))))
        rows += [
            ("", f"{stamp(c.taken_over)}  {c.host} lost (epoch {c.epoch}), taken over then")
            if not c.cls
            else ("", f"{stamp(c.taken_over)}  agent died on {c.host} (epoch {c.epoch}): {how(c.cls)}")
            for c in view.crashes[-5:]
        ]
    for call in view.unsettled:
        hint = "" if view.state == "running" and view.phase != "awaiting_user" else "settle: wal-agent ack"
        ending = f"   {hint} {call.call} --done | --not-done" if hint else ""
        rows.append(("not settled", f"#{call.call} {call.tool} `{call.input}`{ending}"))
    return [f"{name:<11} {shown(redact(text), WIDEST)}" for name, text in rows]
