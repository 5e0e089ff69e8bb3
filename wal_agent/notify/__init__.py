"""Notify people: events of a run become messages, which a process of its own sends by apprise.

events -> post.py (a thread) -> message.py (pure) -> outbox.py (SQLite) -> send.py (a process)
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from wal_agent.extras import require

if TYPE_CHECKING:
    from wal_agent.notify.post import Post


def listener(
    env: Mapping[str, str],
    *,
    job: str,
    bucket: str,
    agent: str,
    workspace: Path,
    attended: bool = False,
    restarts: bool = False,
) -> Post | None:
    """Return the listener that notifies; None where the person named no URL, and then nothing more is loaded.
    `env` is the wrapper's own. ConfigError, UsageError: what the person wrote cannot be meant."""
    if _names_none(env):
        return None
    from wal_agent.notify import message

    found = message.load_targets(env)
    if not found:
        return None
    require("notify", "apprise", "[[notify]]" if not env.get(message.VARIABLE) else message.VARIABLE)
    import platform

    from wal_agent.notify import outbox, send
    from wal_agent.notify.message import Facts
    from wal_agent.notify.post import Post, ends_with_us
    from wal_agent.supervise import processes
    from wal_agent.text import job_option

    box = outbox.outbox_for(env, found)
    named = job_option(job, bucket)
    facts = Facts(job, bucket, agent, platform.node() or "unknown", str(workspace), restarts, named)
    return Post(
        facts,
        found,
        box,
        env,
        lambda: processes.spare_child(send.start_sender(box, found, env)),
        attended,
        ends_with_us(env),
    )


def trouble(env: Mapping[str, str], once: bool = False) -> str:
    """Describe in one line the URLs that did not take their last message; "" for none, also where the configuration
    cannot be read. `once`: without those reported before."""
    if _names_none(env):
        return ""
    from wal_agent.errors import WalAgentError
    from wal_agent.notify import message

    try:
        found = message.load_targets(env)
    except WalAgentError:
        return ""
    if not found:
        return ""
    from wal_agent.notify.outbox import describe_failures

    return describe_failures(env, found, once)


def _names_none(env: Mapping[str, str]) -> bool:
    """Whether the person plainly named no URL. False also where their file cannot be read: who loads it says why."""
    from wal_agent.config import own_document
    from wal_agent.errors import WalAgentError

    with suppress(WalAgentError):
        return not env.get("WAL_AGENT_NOTIFY") and "notify" not in own_document(env)
    return False


def acknowledge(env: Mapping[str, str], bucket: str, job: str) -> None:
    """End the job's reminders: a person looks after it. Never fails."""
    from wal_agent.notify import outbox

    with suppress(OSError):
        outbox.acknowledge(env, outbox.job_digest(bucket, job))
