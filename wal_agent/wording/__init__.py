"""All words of a recovery: the templates of what the agent reads, and the sentences in them and on the screen.

docs/how-to/change-the-prompt.md says how to change them. What a verdict says of a call stands with its evidence
(evidence/model.py), what to do next with the rules of the commands (shell/rules.d/62-next.toml).
"""

from pathlib import Path

FOLDER = Path(__file__).parent
