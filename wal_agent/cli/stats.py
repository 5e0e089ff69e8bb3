"""`wal-agent stats`: crashes, recoveries and what they cost."""

from __future__ import annotations

import os
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wal_agent.answers import answer_json
from wal_agent.cli.job import ANY_AGENT, list_command, own_name, say_bucket, shown_bucket
from wal_agent.cli.job import settings_for as load_settings
from wal_agent.cli.options import AsJson, BucketUrl, KeyCommand, KeyFile, check_typed_job, complete_job
from wal_agent.clock import SystemClock
from wal_agent.errors import Damaged, Denied, Exhausted, Newer, NoJob, UsageError, WalAgentError
from wal_agent.records import state_text
from wal_agent.redact import redact
from wal_agent.text import answer, command, job_command, lines, plural, redraw, timestamp

if TYPE_CHECKING:
    from wal_agent.bucket.base import Bucket
    from wal_agent.fleet.stats import Measured, Stats

MAX_JOBS = 50  # rows of jobs on the screen; JSON has all
MAX_UNREAD = 5  # lines on jobs that cannot be read
PARTS = {  # of a recovery, in the order of time
    "unattended": "no owner",
    "tree": "files",
    "session": "session",
    "all": "prepare",
    "restart": "until agent runs",
}

OneJob = Annotated[
    str | None,
    typer.Option(
        "--job",
        help="Only this job. [all jobs of the bucket]",
        metavar="NAME",
        autocompletion=complete_job,
        callback=check_typed_job,
    ),
]

AFTER = {"closed": "a complete run", "released": "a clean stop", "unlocked": "an unlock", "dead": "a crash"}


def stats(
    bucket: BucketUrl = None,
    job: OneJob = None,
    encryption_key_file: KeyFile = None,
    encryption_key_command: KeyCommand = None,
    json: AsJson = False,
) -> None:
    """Count crashes, recoveries and what they cost, over all jobs of the bucket or one.

    From the logs alone: crashes by cause, recovery times by part (p50, p95, p99), work behind the newest capture,
    calls that were put back, verdicts, and changing calls that were made again. Records that retention has deleted
    are not counted. It only reads. Exit code 73: a log is damaged, and the figures are of what can be read.
    """
    from wal_agent.bucket import open_bucket
    from wal_agent.bucket.decorators import RetryBucket
    from wal_agent.bucket.encryption import EncryptedBucket, key_id, load_key
    from wal_agent.fleet.stats import StatsAnswer, Unread, merge_stats, show_stats

    flags: dict[str, object] = {
        "bucket": bucket,
        "encryption_key_file": encryption_key_file,
        "encryption_key_command": encryption_key_command,
    }
    settings = load_settings(ANY_AGENT, Path.cwd().resolve(), flags, {"bucket"})
    say_bucket(settings)
    key = load_key(settings.encryption_key_file, settings.encryption_key_command, os.environ)
    plain = open_bucket(settings.bucket)
    opened = RetryBucket(EncryptedBucket(plain, key), SystemClock(), random.Random())
    here = settings.bucket_options
    found, unread = measure(opened, job, key_id(key))
    if not found:
        if unread:
            raise next(iter(unread.values()))
        if job:
            raise UsageError(f"There is no job {job} in {opened.url}.", f"See: {list_command(opened.url)}")
        raise NoJob(f"There is no job in {opened.url}.", f"Start one: {command('run AGENT', here)}")
    total = merge_stats(each.stats for each in found)
    if json:
        jobs = tuple(show_stats(each.stats, each.problem) for each in found)
        skipped = tuple(Unread(name, _clean(str(error))) for name, error in unread.items())
        answer_json(StatsAnswer(_clean(opened.url), jobs, show_stats(total), skipped))
    else:
        answer(table([each.stats for each in found], total, opened.url))
    problems = [(name, str(error)) for name, error in unread.items()]
    lines([f"wal-agent: not counted: job {name}: {_clean(why)}" for name, why in problems[:MAX_UNREAD]])
    if len(problems) > MAX_UNREAD:
        more = plural(len(problems) - MAX_UNREAD, "more job")
        lines([f"wal-agent: not counted: {more}. See: {command('stats --json', here)}"])
    damaged = [each for each in found if each.problem]
    if damaged:
        more = f" So are {plural(len(damaged) - 1, 'log')} more." if len(damaged) > 1 else ""
        look = f"Look: {job_command('status', damaged[0].stats.job, opened.url)}"
        raise Damaged(f"The figures lack records. {damaged[0].problem}{more}", look)
    if any(isinstance(error, Damaged) for error in unread.values()):
        look = f"Look: {command('fleet ls --state damaged', shown_bucket(opened.url))}"
        raise Damaged("Some jobs are damaged and were not counted.", look)


def measure(bucket: Bucket, job: str | None, key: str) -> tuple[list[Measured], dict[str, WalAgentError]]:
    """Read one job or all, by name; and why some cannot be read. `key`: id of the key that `bucket` decrypts with.

    UsageError: the name can be no job's. Unavailable, Denied: the bucket cannot be read."""
    from wal_agent.fleet.jobs import is_job
    from wal_agent.fleet.stats import measure_job
    from wal_agent.wal.keys import Keys

    names = [own_name(job, bucket)] if job else sorted(filter(is_job, bucket.folders("")))
    found: list[Measured] = []
    unread: dict[str, WalAgentError] = {}
    for n, name in enumerate(names, 1):
        if len(names) > 1:
            redraw(f"reading job {n} of {len(names)}: {name}")
        try:
            measured = measure_job(bucket, Keys(name), key) if job else _measure_in_time(bucket, name, key)
        except (Damaged, Denied, Newer, Exhausted) as error:
            unread[name] = error
            continue
        if measured is not None:
            found.append(measured)
    if len(names) > 1:
        redraw("")
    return found, unread


def _measure_in_time(bucket: Bucket, job: str, key: str) -> Measured | None:
    """One of many jobs: what is wrong with it costs its own figures. Damaged, Denied, Newer; Exhausted."""
    from wal_agent.budget import FOREIGN
    from wal_agent.concurrency import call_with_timeout
    from wal_agent.fleet.stats import measure_job
    from wal_agent.wal.keys import Keys

    late: Measured | Exhausted | None = Exhausted(
        f"Its log takes more than {FOREIGN.log_seconds:g} s to read.", f"See: {job_command('stats', job, bucket.url)}"
    )

    try:
        found = call_with_timeout(FOREIGN.log_seconds, lambda: measure_job(bucket, Keys(job), key), late)
    except (MemoryError, RecursionError):
        raise Exhausted(
            "Its log takes more memory than there is.", f"See: {job_command('stats', job, bucket.url)}"
        ) from None
    if isinstance(found, Exhausted):
        raise found
    return found


def table(jobs: Sequence[Stats], total: Stats, url: str) -> list[str]:
    """Rows for people: all jobs together, then one row each where there are several."""
    from wal_agent.fleet.stats import quantiles_of

    which = f"job {jobs[0].job}" if len(jobs) == 1 else plural(len(jobs), "job")
    rows = [
        f"{which} in {_clean(url)}: {plural(total.starts, 'start')}, {plural(total.calls, 'call')}, "
        f"{plural(total.records, 'record')} from {timestamp(total.since)} to {timestamp(total.until)}"
    ]
    if total.missing:
        rows.append(_row("not kept", f"{plural(total.missing, 'record')}: what was in them is not counted here"))
    rows.append(_row("crashes", f"{sum(total.crashes.values())}{_listed(total.crashes)}"))
    ever = f" of {total.recoveries_ever}" if total.recoveries_ever > total.recoveries else ""
    after = {AFTER.get(name, name): count for name, count in total.after.items()}
    rows.append(_row("recoveries", f"{total.recoveries}{ever}{_listed(after, ': after ')}"))
    if total.recoveries:
        rows.append(_row("put back", plural(total.put_back, "call")))
        rows.append(_row("verdicts", f"{sum(total.verdicts.values())}{_listed(total.verdicts)}"))
        if total.verdicts:
            states = {state_text(k): n for k, n in total.settled.items()}  # type: ignore[arg-type]
            answered = f"; {total.answered} answered by the agent" if total.answered else ""
            rows.append(_row("now", f"{_listed(states, '')}{answered}"))
        again = {f"{k.replace('_', ' ')} before": n for k, n in total.repeated.items()}
        rows.append(_row("repeated", f"{plural(sum(again.values()), 'changing call')}{_listed(again)}"))
    if total.times:
        order = [*(part for part in PARTS if part in total.times), *sorted(total.times.keys() - PARTS)]
        cells = [(PARTS.get(part, part), quantiles_of(total.times[part])) for part in order]
        rows += ["", *_quantile_rows("seconds of a recovery", [(name, q) for name, q in cells if q is not None], 2)]
    if total.lost:
        known = [loss for loss in total.lost if loss.files_calls is not None]
        away = [loss for loss in known if not loss.same_machine]
        kinds: list[tuple[str, list[float]]] = [
            ("conversation, seconds", [loss.seconds for loss in total.lost]),
            ("conversation, calls", [loss.calls for loss in total.lost]),
            ("files, seconds", [loss.files_seconds or 0.0 for loss in known]),
            ("files, calls", [loss.files_calls or 0 for loss in known]),
            ("files elsewhere, calls", [loss.files_calls or 0 for loss in away]),
        ]
        lost = [(name, q) for name, values in kinds if (q := quantiles_of(values)) is not None]
        rows += ["", *_quantile_rows("not captured at a crash", lost, 1)]
    if total.loss_unknown:
        rows.append(f"  not known: {total.loss_unknown} (records of these runs are no longer kept)")
    return [*rows, *(_job_rows(jobs) if len(jobs) > 1 else [])]


def _job_rows(jobs: Sequence[Stats]) -> list[str]:
    """Those with the most crashes first."""
    from wal_agent.fleet.stats import quantiles_of

    ordered = sorted(jobs, key=lambda each: (-sum(each.crashes.values()), -each.recoveries, each.job))
    wide = max(len(each.job) for each in ordered[:MAX_JOBS])
    rows = ["", f"{'JOB':<{wide}}  STARTS  CRASHES  RECOVERIES  PUT BACK  UNKNOWN  REPEATED  PREPARE p50"]
    for each in ordered[:MAX_JOBS]:
        took = quantiles_of(each.times.get("all", ()))
        numbers = (
            f"{each.starts:>6}  {sum(each.crashes.values()):>7}  {each.recoveries:>10}  {each.put_back:>8}  "
            f"{each.verdicts.get('unknown', 0):>7}  {sum(each.repeated.values()):>8}"
        )
        rows.append(f"{each.job:<{wide}}  {numbers}  {f'{took.p50:.2f} s' if took else '-':>11}")
    if len(ordered) > MAX_JOBS:
        rows.append(f"and {plural(len(ordered) - MAX_JOBS, 'more job')} with fewer crashes (--json has all)")
    return rows


def _quantile_rows(title: str, found: Sequence[tuple[str, object]], digits: int) -> list[str]:
    from wal_agent.fleet.stats import Quantiles

    rows = [f"{title:<24}  {'n':>6}  {'p50':>9}  {'p95':>9}  {'p99':>9}  {'max':>9}"]
    for name, q in found:
        assert isinstance(q, Quantiles)
        places = 0 if name.endswith("calls") else digits
        numbers = "  ".join(f"{value:>9.{places}f}" for value in (q.p50, q.p95, q.p99, q.max))
        rows.append(f"  {name:<22}  {q.count:>6}  {numbers}")
    return rows


def _row(name: str, text: str) -> str:
    return f"  {name:<12} {text}"


def _listed(counts: Mapping[str, int], before: str = ": ") -> str:
    """ ": cut off 3, killed 1", the most frequent first; "" of nothing."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return before + ", ".join(f"{name.replace('_', ' ')} {n}" for name, n in ordered if n) if ordered else ""


def _clean(text: str) -> str:

    return redact(text)
