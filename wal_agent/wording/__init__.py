"""All words of a recovery: the templates of what the agent reads, and the sentences in them and on the screen.

docs/how-to/change-the-prompt.md says how to change them. Only what is true of one program (how to verify it, what is
ambiguous of it) stands with its rule, in calls/rules/rules.d.
"""

from pathlib import Path

FOLDER = Path(__file__).parent
