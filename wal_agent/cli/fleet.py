"""`wal-agent fleet`: all jobs of a bucket."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn, TypeVar

import typer

from wal_agent.answers import answer_json
from wal_agent.cli.display import STATE, answer_table, draw_in_place, is_rich, plain_table
from wal_agent.cli.job import ANY_AGENT, say_bucket, settings_for, shown_bucket
from wal_agent.cli.options import AsJson, BucketUrl, check_seconds, require_subcommand
from wal_agent.clock import SystemClock
from wal_agent.errors import Unavailable, UsageError
from wal_agent.redact import redact
from wal_agent.safefs import real_path
from wal_agent.text import (
    answer,
    bucket_option,
    command,
    duration,
    job_command,
    moment,
    plural,
    printable,
    say,
    shorten,
    unheard,
    unproven_text,
)

if TYPE_CHECKING:
    from wal_agent.bucket.base import Bucket
    from wal_agent.fleet.jobs import Job, OpenWork
    from wal_agent.inbox import Driver

S = TypeVar("S", bound=str)
WIDEST = 60  # characters of one column; the last has more
OPEN = "OPEN CALLS"
HEADER = ("STATE", "JOB", "AGENT", "HOST", OPEN, "TASK", "FOLDER", "WHAT")
TASK = 40  # characters of a task
WITHOUT_HOST = "wal_agent_fleet_jobs_without_host"  # the metric
STALE = 60.0  # seconds, and three looks, after which a number is not served any more
SHORTEST, LONGEST = 0.1, 86_400.0  # seconds between two looks, and of a command
Every = Annotated[float, typer.Option("--every", help="Seconds between two checks.")]

app = typer.Typer(
    help="Manage all jobs of a bucket: list, watch and claim those that need a host.", rich_markup_mode=None
)


@app.callback(invoke_without_command=True)
def top(context: typer.Context) -> None:
    require_subcommand(context)


@app.command("ls")
def ls(
    bucket: BucketUrl = None,
    state: Annotated[
        str | None,
        typer.Option(
            "--state", help="Only jobs in these states, separated by commas: crashed,due", metavar="STATE,..."
        ),
    ] = None,
    json: AsJson = False,
) -> None:
    """Show what every job does; jobs that need a host or a person come first.

    It reads the lease of each job, and up to 20 logs, of unfinished jobs first, for task and open calls. States:
    damaged, newer (its lease was written by a newer wal-agent), crashed, due (its pause is over), released, unlocked,
    running, paused, closed.
    """
    from wal_agent.fleet.jobs import STATES, Jobs, Reader, count_states, read_open_work, sort_jobs, with_names
    from wal_agent.wal.names import names_to_show

    wanted = _states(state, STATES)
    opened = _opened(bucket)
    jobs = sort_jobs(with_names(Reader.of(opened, os.environ).all(), names_to_show(opened)))
    shown = [job for job in jobs if job.state in wanted]
    if json:
        answer_json(Jobs.of(opened, shown))
        return
    answer_jobs(shown, read_open_work(opened, shown))
    needing = sum(job.needs_host for job in jobs)
    rest = f"; {needing} need{'s' if needing == 1 else ''} a host: {claim_command(opened.url)}" if needing else ""
    many = "1 job" if len(jobs) == 1 else f"{len(jobs)} jobs"
    answer([f"{many} in {opened.url}{': ' if jobs else ''}{count_states(jobs)}{rest}"])


def claim_command(url: str) -> str:
    """The command with which a host takes a job: only folders below --root, which by default is where it is typed."""
    return command("fleet claim", bucket_option(url), "--root", "DIR")


def list_jobs(
    here: Annotated[bool, typer.Option("--here", help="Only the jobs of this folder.")] = False,
    bucket: BucketUrl = None,
    json: AsJson = False,
) -> None:
    """List the jobs of the bucket, newest first, with their state, open calls and folder.

    `wal-agent fleet ls` lists the same jobs by who needs a host or a person first.
    """
    from wal_agent.fleet.jobs import Jobs, Reader, find_jobs_here, read_open_work, with_names
    from wal_agent.wal.names import names_to_show

    opened = _opened(bucket)
    if here:
        found = find_jobs_here(opened, Path.cwd().resolve(), os.environ)
    else:
        found = Reader.of(opened, os.environ).all()
    jobs = sorted(with_names(found, names_to_show(opened)), key=lambda job: (job.age, job.job))
    if json:
        answer_json(Jobs.of(opened, jobs))
        return
    if not jobs:
        where = "This folder has no job" if here else "There is no job"
        say(f"{where} in {opened.url}. Start one: {command('run AGENT', shown_bucket(opened.url))}")
    answer_jobs(jobs, read_open_work(opened, jobs))


@app.command("report")
def fleet_report(
    bucket: BucketUrl = None,
    html_file: Annotated[
        str, typer.Option("--html", help="The file to write, - for stdout.", metavar="FILE")
    ] = "fleet.html",
) -> None:
    """Write all jobs of the bucket as one HTML page: states, hosts, open calls, tasks, and the command for each report.

    The page loads nothing and has no script. Only a file that is such a page is replaced.
    """
    from wal_agent.cli.report import write_page
    from wal_agent.fleet.jobs import Reader, read_open_work, sort_jobs, with_names
    from wal_agent.wal.names import names_to_show

    opened = _opened(bucket)
    jobs = sort_jobs(with_names(Reader.of(opened, os.environ).all(), names_to_show(opened)))
    text = fleet_page(opened.url, jobs, read_open_work(opened, jobs))
    if html_file == "-":
        sys.stdout.write(text)
        return
    write_page(Path(html_file), text)
    say(f"wrote {Path(html_file).absolute()}; it holds tasks and folders, so treat it as confidential.")


def fleet_page(url: str, jobs: Sequence[Job], work: Mapping[str, OpenWork]) -> str:
    """Return the page. All that it shows is foreign, and is escaped."""
    from html import escape

    from wal_agent.cli.report import MARK, page_style
    from wal_agent.fleet.jobs import count_states

    def safe(text: str) -> str:
        return escape(printable(redact(text)))

    tones = {"running": "good", "closed": "", "crashed": "bad", "damaged": "bad", "newer": "bad"}
    rows = []
    for job in jobs:
        state, *cells = job_cells(job, work.get(job.job))
        report = f"{job_command('report', job.job, url)} --open"
        shown = "".join(f"<td>{safe(cell)}</td>" for cell in cells)
        tone = tones.get(job.state, "warn")
        rows.append(f'<tr><td class="{tone}">{safe(state)}</td>{shown}<td><code>{safe(report)}</code></td></tr>')
    style, policy = page_style()
    heads = "".join(f'<th scope="col">{name.capitalize()}</th>' for name in (*HEADER, "report"))
    made = moment(SystemClock().now(), 0, exact=True, whole=True)
    about = f"{plural(len(jobs), 'job')} in {url}{': ' if jobs else ''}{count_states(jobs)}; made {made}"
    return (
        f'{MARK}\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}"><meta name="referrer" content="no-referrer">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><title>Fleet</title>'
        f'<style>{style}</style></head>\n<body><header><h1>Fleet</h1><p class="dim">{safe(about)}</p></header>'
        '\n<main class="wide"><table>'
        f"<thead><tr>{heads}</tr></thead><tbody>\n" + "\n".join(rows) + "\n</tbody></table></main></body></html>\n"
    )


@app.command("watch")
def watch(
    on_crash: Annotated[
        str,
        typer.Option(
            "--on-crash", metavar="COMMAND", help="Shell command that is run once for each job that needs a host."
        ),
    ] = "",
    notify: Annotated[
        bool,
        typer.Option("--notify", help="Send a message about each such job to the URLs that `wal-agent notify` shows."),
    ] = False,
    on_message: Annotated[
        str,
        typer.Option("--on-message", help="Shell command that is run once for each job at rest that has new messages."),
    ] = "",
    bucket: BucketUrl = None,
    on: Annotated[
        str,
        typer.Option(
            "--on", help="Which jobs: crashed, released (the machine was shut down), due (the pause is over)."
        ),
    ] = "crashed,released,due",
    screen: Annotated[
        bool, typer.Option("--screen", help="Only show all jobs, in place on the terminal, until Ctrl-C.")
    ] = False,
    metrics_addr: Annotated[
        str,
        typer.Option(
            "--metrics-addr",
            help="Serve the number of jobs by state, and of those that need a host, at this address (/metrics).",
            metavar="HOST:PORT",
        ),
    ] = "",
    every: Every = 10.0,
    once: Annotated[bool, typer.Option("--once", help="Check once and exit, for cron.")] = False,
    most: Annotated[int, typer.Option("--most", help="Maximum number of jobs per round.", min=1)] = 20,
    at_once: Annotated[
        int, typer.Option("--at-once", help="Maximum number of commands at the same time.", min=1, max=100)
    ] = 8,
    limit: Annotated[float, typer.Option("--limit", help="Timeout of a command in seconds.", min=0.1)] = 60.0,
    tries: Annotated[int, typer.Option("--tries", help="Total attempts of a command that fails.", min=1, max=1000)] = 3,
    ttl: Annotated[
        float, typer.Option("--ttl", help="Seconds until another watcher takes over from a dead one.")
    ] = 30.0,
) -> None:
    """Run a command once for each job that lost its host, send a message about it (--notify), or both.

    The command finds the job in its environment: WAL_AGENT_JOB, WAL_AGENT_BUCKET, FLEET_STATE, FLEET_AGENT,
    FLEET_EPOCH, FLEET_HOST, FLEET_WORKSPACE, FLEET_REASON ... It should start something (a machine, a message) and not
    wait for it. If there are several watchers, only one acts. Nothing is run twice for the same loss of a job, unless
    it failed: commands that a dead watcher may have run are reported, not repeated. The variables come from the bucket:
    quote them, and take no folder from them.

    --on-message wakes a job that does not run for messages that it was not woken for before; FLEET_MESSAGES is their
    number. A paused job is woken by `send --control resume` alone, and a halted one by none.

    --screen runs nothing: it shows all jobs in place, as `wal-agent fleet ls` lists them.

    With --once the exit code is 75 while another watcher is active; it is 76 when another watcher has taken over.
    """
    import signal
    import threading

    from wal_agent.fleet.inboxes import Inboxes
    from wal_agent.fleet.watch import ACTED_ON, KEYS, Watcher, WatchOptions
    from wal_agent.supervise.ancestry import require_person
    from wal_agent.wal.store import JobStore

    require_person("wal-agent fleet watch")
    if screen:
        if on_crash or notify or on_message or once or metrics_addr:
            raise UsageError("--screen only shows the jobs.", "Run the watcher without it, beside the screen.")
        check_seconds("--every", every, SHORTEST, LONGEST)
        _show_jobs(_opened(bucket), every)
    if not on_crash and not notify and not on_message and not metrics_addr:
        raise UsageError(
            "Nothing would be done for a job.",
            "Give --notify, --on-crash COMMAND, --on-message COMMAND or --metrics-addr HOST:PORT.",
        )
    states = _states(on, ACTED_ON, "--on")
    check_seconds("--every", every, SHORTEST, LONGEST)
    check_seconds("--limit", limit, SHORTEST, LONGEST)
    check_seconds("--ttl", ttl, 2.0, 3600.0)
    seen = _serve_counts(metrics_addr, states, every) if metrics_addr else None
    wanted = WatchOptions(on_crash, states, every, once, most, at_once, limit, tries, ttl, on_message, seen)
    send = _notifier(os.environ) if notify else None
    opened, stop, ended = _opened(bucket), threading.Event(), list[int]()
    tell = None if send is None else lambda job: send(job, opened.url)

    def end(number: int, frame: object) -> None:
        ended.append(number)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, end)
    inboxes = Inboxes(lambda job: _messages_of(job, opened), opened, say) if on_message else None
    silent = None if once else _silent_runs(opened.url)
    Watcher(JobStore(opened, KEYS), wanted, os.environ, say, stop, tell, inboxes, silent).go()
    if ended:
        raise typer.Exit(128 + ended[0])


@app.command("claim", context_settings={"allow_extra_args": True, "ignore_unknown_options": False})
def claim(
    context: typer.Context,
    bucket: BucketUrl = None,
    root: Annotated[
        str | None,
        typer.Option(
            "--root", help="Take only jobs whose workspace is below this folder. [this folder]", metavar="DIR"
        ),
    ] = None,
    generic: Annotated[
        bool,
        typer.Option("--generic", help="Take jobs of agent `generic` only, and run the command after `--` for them."),
    ] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until a job needs a host.")] = False,
    loop: Annotated[bool, typer.Option("--loop", help="When a run has ended, take the next job.")] = False,
    every: Every = 10.0,
    accept_logged_args: Annotated[
        bool,
        typer.Option(
            "--accept-logged-args",
            help="Give the agent the arguments of the job's log, also if another machine typed them. Whoever can write "
            "the bucket then chooses what the agent runs here.",
        ),
    ] = False,
) -> None:
    """Take a job that lost its host, and run it here as `wal-agent run` does.

    It takes a job that crashed, whose machine went away, or whose pause is over, the longest waiting first. The job
    runs in the folder where it ran before (created if missing), which must be below --root, so that the bucket cannot
    choose just any place on this machine. Everything after `--` goes to the agent; without it, the arguments that were
    typed on this machine before. Arguments that were typed on another machine need --accept-logged-args (else 78).

    The exit code is 0 if no job needs a host, else that of `wal-agent run`; 75 means that another host was faster.
    """
    from wal_agent.agents import AGENTS
    from wal_agent.fleet.jobs import Allowed, ClaimOptions, Launcher, Reader, claim, exec_run, run_child
    from wal_agent.paths import config_dir, home, state_dir
    from wal_agent.supervise.ancestry import require_person

    require_person("wal-agent fleet claim")
    check_seconds("--every", every, SHORTEST, LONGEST)
    if context.args and "--" not in sys.argv:
        raise UsageError(f"{context.args[0]!r} is not an option.", "What is for the agent comes after `--`.")
    if generic and not context.args:
        raise UsageError("What is run for a generic job is a person's to say.", "Name it: --generic -- COMMAND")
    ours = [real_path(place(os.environ)) for place in (state_dir, config_dir)]
    allowed = Allowed(AGENTS, real_path(root or Path.cwd()), home(os.environ), generic, ours)
    eyes = Reader.of(_opened(bucket), os.environ)
    code = claim(
        eyes,
        allowed,
        ClaimOptions(wait, loop, every, tuple(context.args), accept_logged_args),
        say,
        SystemClock(),
        random.Random(),
        Launcher(
            lambda argv, place: exec_run(argv, place, os.environ),
            lambda argv, place: run_child(argv, place, os.environ),
        ),
    )
    raise typer.Exit(code)


def _serve_counts(address: str, on: Collection[str], every: float) -> Callable[[Sequence[Job]], None]:
    """Serve the numbers of the newest look while it is new, and return what takes each. `on`: states in which a job
    that needs a host counts; `every`: seconds between two looks. UsageError, ConfigError: it cannot be served there."""
    from prometheus_client import CollectorRegistry, Gauge

    from wal_agent.config import SETTINGS, Origin
    from wal_agent.fleet.jobs import STATES
    from wal_agent.observe.serve import TYPE, Server, exposition

    registry = CollectorRegistry()
    jobs = Gauge("wal_agent_fleet_jobs", "Jobs of the bucket.", ["state"], registry=registry)
    waiting = Gauge(WITHOUT_HOST, "Jobs that need a host.", registry=registry)
    text, clock = exposition(registry), SystemClock()
    until = 0.0  # boot time; a watcher that stands by, or whose bucket is away, says nothing

    def answer(path: str) -> tuple[int, str, bytes]:
        if path == "/metrics" and clock.boot() < until:
            return 200, TYPE, text()
        wrong = {"/metrics": (503, b"no new look\n"), "/healthz": (200, b"ok\n")}
        status, why = wrong.get(path, (404, b"/metrics or /healthz\n"))
        return status, "text/plain; charset=utf-8", why

    def take(found: Sequence[Job]) -> None:
        nonlocal until
        for state in STATES:
            jobs.labels(state).set(sum(job.state == state for job in found))
        waiting.set(sum(job.needs_host and job.state in on for job in found))
        until = clock.boot() + 3 * every + STALE

    served = Server(SETTINGS["metrics_addr"].read(address, Origin("flag", "--metrics-addr")), answer)
    say(f"metrics: http://{served.address}/metrics")
    return take


def _silent_runs(url: str) -> Callable[[], set[tuple[str, int]]] | None:
    """What names the runs whose heartbeats stopped, where the person's setting `messages` is a NATS server."""
    from wal_agent.messages import hear_beats

    settings = settings_for(ANY_AGENT, Path.cwd().resolve(), {"bucket": url}, {"bucket"})
    return hear_beats(settings, os.environ, SystemClock().boot, say)


def _messages_of(job: str, bucket: Bucket) -> Driver:
    """What carries the messages of a job: the bucket, and the servers of the person's setting `messages`."""
    from wal_agent.messages import open_driver

    settings = settings_for(ANY_AGENT, Path.cwd().resolve(), {"bucket": bucket.url}, {"bucket"})
    return open_driver(settings, os.environ, bucket, job, say)


def _show_jobs(bucket: Bucket, every: float) -> NoReturn:
    """Show all jobs in place, those first that need a host or a person. UsageError: there is no terminal; Denied."""
    from wal_agent.fleet.jobs import Reader, count_states, read_open_work, sort_jobs, with_names
    from wal_agent.wal.names import names_to_show

    if not is_rich():
        raise UsageError("--screen needs a terminal.", "Use: wal-agent fleet ls")
    reader, shown = Reader.of(bucket, os.environ), list[str]()

    def frame() -> tuple[list[str], list[str]]:
        nonlocal shown
        trouble = ""
        try:
            jobs = sort_jobs(with_names(reader.all(), names_to_show(bucket)))
            work = read_open_work(bucket, jobs)
            rows = plain_table(HEADER, [job_cells(job, work.get(job.job)) for job in jobs], right=(OPEN,))
            shown = [f"{len(jobs)} in {bucket.url}{': ' if jobs else ''}{count_states(jobs)}", "", *rows]
        except Unavailable as error:
            trouble = f"; waiting: {error}"
        return [f"every {every:g} s; Ctrl-C ends it{trouble}", "", *shown], shown

    draw_in_place(frame, {f"(?m){words}": style for words, style in STATE.items()}, every)


def _notifier(env: Mapping[str, str]) -> Callable[[Job, str], str]:
    """Return what sends the message about a job in a bucket (a URL) to every URL of the person's. ConfigError and
    UsageError: none is configured, or one of them cannot be used."""
    from wal_agent.notify.message import VARIABLE, load_targets, own_file
    from wal_agent.notify.send import deliver

    targets = load_targets(env)
    if not targets:
        raise UsageError(
            "There is no URL to send messages to.", f"Add [[notify]] to {own_file(env)}, or set {VARIABLE}."
        )

    def send(job: Job, url: str) -> str:
        title, body = describe_loss(job, url)
        failed = [why for target in targets if (why := deliver(target, "person_needed", title, body))]
        return "; ".join(failed)

    return send


def describe_loss(job: Job, url: str) -> tuple[str, str]:
    """Title and text of the message about a job that has no host."""
    what = {"crashed": "crashed", "due": "its pause is over", "released": "its machine went away"}
    words = f"Job {job.job} ({shorten(job.agent, WIDEST)}) has had no host for {duration(job.waits)}"
    where = f"It ran on {shorten(job.host, WIDEST)} in {shorten(job.workspace, 200)}." if job.host else ""
    only = (
        f"Only {shorten(job.only_on, WIDEST)} can carry on: it holds records that the bucket lacks."
        if job.only_on
        else ""
    )
    rows = [
        f"{words}.",
        where,
        only,
        f"Look: {job_command('status', job.job, url)}",
        f"Carry on: {claim_command(url)}",
    ]
    return f"wal-agent: {job.job}: {what.get(job.state, job.state)}", "\n".join(row for row in rows if row)


def answer_jobs(jobs: Sequence[Job], work: Mapping[str, OpenWork]) -> None:
    """Write a table of `jobs`. `work`: by job, what its log says; "-" where that is not known."""
    from wal_agent.fleet.jobs import LOOK_TIME, MAX_READ, is_readable

    answer_table(
        HEADER, [job_cells(job, work.get(job.job)) for job in jobs], right=(OPEN,), folds=("HOST", "TASK", "FOLDER")
    )
    if any(is_readable(job) and job.job not in work for job in jobs):
        say(f'"-" is not read: a list reads {MAX_READ} logs, for {LOOK_TIME:.0f} s, unfinished jobs first.')


def job_cells(job: Job, work: OpenWork | None) -> tuple[str, ...]:
    """Return a row below HEADER."""
    from wal_agent.fleet.jobs import HOOKLESS

    calls, task = (str(work.calls), shorten(work.task, TASK)) if work else ("-", "-")
    if job.agent == HOOKLESS:
        calls = "-"
    cells = (job.state, job.title, job.agent, job.host, calls, task, job.workspace)
    what = "; ".join(filter(None, (_what(job), unproven_text(work.unproven if work else 0))))
    return (*(shorten(cell, WIDEST) for cell in cells), shorten(what, 300))


def _what(job: Job) -> str:

    match job.state:
        case "damaged" | "newer":
            return job.problem
        case "crashed":
            words = f"last heard of {duration(job.age)} ago: {job.phase} {job.tool}".rstrip(": ")
        case "due":
            words = f"paused until {duration(job.waits)} ago: {job.reason}"
        case "released" | "unlocked" | "closed":
            words = f"{duration(job.age)} ago" + (f": {job.reason}" if job.reason else "")
        case "running":
            about = job.tool or (f"({text})" if (text := unheard(job.phase)) else "")
            words = f"{job.phase}{', ' + duration(job.phase_age) if job.phase_age else ''} {about}".strip()
        case "paused":
            until = moment(job.until, job.until - job.left, exact=job.left < 600)  # as `status` says it
            words = f"until {until} (in {duration(job.left)}): {job.reason}"
    only = f" (only {job.only_on} can carry on: --on-outage spool)" if job.only_on else ""
    return words.rstrip(": ") + only


def _opened(url: str | None) -> Bucket:
    """The bucket that a person named, or allowed this folder to name: what it says may be acted upon."""
    from wal_agent.bucket import open_bucket
    from wal_agent.bucket.decorators import RetryBucket

    settings = settings_for(ANY_AGENT, Path.cwd().resolve(), {"bucket": url}, {"bucket"})
    say_bucket(settings)
    return RetryBucket(open_bucket(settings.bucket), SystemClock(), random.Random())


def _states(text: str | None, known: Sequence[S], option: str = "--state") -> tuple[S, ...]:

    if text is None:
        return tuple(known)
    asked = [word.strip() for word in text.split(",") if word.strip()]
    if not asked or any(word not in known for word in asked):
        raise UsageError(f"{option} {text} is not possible.", f"Allowed: {', '.join(known)}.")
    return tuple(state for state in known if state in asked)
