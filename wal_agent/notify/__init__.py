"""Tells people: what a run tells of itself becomes messages, which a process of its own sends by apprise.

happened -> post.py (a thread) -> message.py (pure) -> outbox.py (a folder) -> send.py (a process) -> deliver.py
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

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
    """What is to be told of a run's happenings; None where the person named no URL, and then nothing more is loaded.
    `env` is the wrapper's own. ConfigError, UsageError: what the person wrote cannot be meant."""
    from wal_agent.notify import targets

    found = targets.load_targets(env)
    if not found:
        return None
    import platform

    from wal_agent.notify import outbox, send
    from wal_agent.notify.message import Facts
    from wal_agent.notify.post import Post, ends_with_us
    from wal_agent.supervise import processes

    box = outbox.outbox_for(env, found)
    facts = Facts(job, bucket, agent, platform.node() or "unknown", str(workspace), restarts)
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
    """One line on URLs that did not take their last message; "" for none. `once`: not what was told so before. A
    configuration that cannot be read is not told here."""
    from wal_agent.errors import WalAgentError
    from wal_agent.notify import targets

    try:
        found = targets.load_targets(env)
    except WalAgentError:
        return ""
    if not found:
        return ""
    from wal_agent.notify.outbox import describe_failures

    return describe_failures(env, found, once)


def acknowledge(env: Mapping[str, str], bucket: str, job: str) -> None:
    """A person looks after the job: what stopped it is not told again. Never fails."""
    from contextlib import suppress

    from wal_agent.notify import outbox

    with suppress(OSError):
        outbox.acknowledge(env, outbox.job_digest(bucket, job))
