from __future__ import annotations

from collections.abc import Iterator

import pytest

from wal_agent.agents import hook_line


@pytest.fixture(autouse=True, scope="module")
def hooks_have_time() -> Iterator[None]:
    """Also those that need not wait for a bucket, and here for a loaded machine alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(hook_line.CLIENT_SECONDS, False, 20)
        patch.setitem(hook_line.SHELL_SECONDS, False, 25)
        yield
