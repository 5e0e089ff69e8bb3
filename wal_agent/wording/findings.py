"""What the evidence says of a call, one sentence each. `{}` takes what is safe to show (quote.inline)."""

from __future__ import annotations

# -- files
FILE_WRITTEN = "The file {} holds exactly what the call was to write."
FILE_BEGUN = "The file {} holds only the beginning of what the call was to write."
FILE_UNREADABLE = "The file {} could not be read."
FILE_NOT_KNOWN = "Nothing is known of the file {} before the call."
FILE_NEITHER_WRITTEN = "The file {} is neither as it was before the call nor as the call would leave it."
FILE_NEITHER_REPLACED = "The file {} is neither as it was before the call nor plainly what the call would leave."
FILE_NEITHER_APPENDED = "The file {} is neither as it was before the call nor plainly as the call would leave it."
FILE_REPLACED = "The file {} is what it was before the call, with the new text in place of the old."
FILE_CONTESTED = "The file {} has the new text, but another call may have put it there."
FILE_APPENDED = "The file {} is what it was before the call, with what was to be added."
APPEND_BEGUN = "Only the beginning of what was to be added is in the file {}."
OUTPUT_CHANGED = "The file {} has changed since the call, so the command may have begun."
OUTPUT_MAYBE_OPENED = "{}, but its output file may have been opened."
PATH_NOT_CLEAR = "The state of {} does not show what happened."
PATHS_EITHER = "{} {}, as before the call."
PATHS_CONTESTED = "{} {}, but another call may have done that."
PATHS_MIXED = "Not all of {} are as they were before the call."

# -- as before: what is as it was ...
OUTPUT_NOT_OPENED = "The shell has not opened the file {}, which it does before the command runs"
FILE_UNCHANGED = "The file {} is as it was before the call"
PATH_UNCHANGED = "{} is as it was before the call"
PATHS_UNCHANGED = "{} are as they were before the call"
NPM_UNCHANGED = "{}, its lock file and {} are as they were before the call"
# ... and why that proves nothing, or that it does
OTHER_PLACE = "{}, but this is not the machine or folder that the call worked on."
NOT_GONE = "{}, but the process that ran the call may still be there."
NOT_ALONE = "{}, but other calls may have changed it back."
RELATIVE_PATH = "{}, but the call's path is relative and may mean another folder."
AS_BEFORE_RESTORED = "{} in the working tree that was put back."

# -- calls and their processes
STILL_RAN = "It was still running; wal-agent stopped it."
RAN_ON = "It was still running when the agent had its result; whether it still is, is not known."
RAN_ON_HERE = "It was still running, and ended with its run."
RAN_ON_AWAY = "It was still running, and ended with its machine."
ENTANGLED = "Its steps work on the same files, so what they look like now says nothing for sure."
ENDING_NOT_KEPT = "The process is gone and left no result."
UNLOGGED = "No hook announced it, so it was not logged before it could begin; it may have run."
OF_OTHERS_UNKNOWN = " The state of {} is unknown."
RUN_NOT_BEGUN = "The log of job {} has no run that this call began."
RUN_CLOSED = "The log of job {} says that this run came to the end of its task."
RUN_CUT_OFF = "The log of job {} says that this run was cut off."
RUN_RELEASED = "The log of job {} says that this run stopped before the end of its task."
RUN_HELD = "By its lease job {} may still run."

# -- packages
NPM_CONTESTED = "npm has written {}, but that may have been for another call."
NPM_WRITING = "npm was writing {}, which it does last."
NPM_DONE = "npm has written {}, which it does when all packages are in place."
NPM_SCRIPTS = "npm has written {}, but scripts of the project run after that."
NPM_TOO_BIG = "npm has not written {} since the call; {} is too big to compare."
NPM_BEGUN = "{} or the lock file has changed, and npm has not written {}."
PACKAGES_BEGUN = "{} changed since the call, so it began; whether it finished is unknown."
PACKAGES_UNCHANGED = "{} did not change since the call, but other files may have."

# -- git
REPO_UNREADABLE = "The repository could not be read."
REPO_NOT_KNOWN = "Nothing is known of the repository before the call."
REPO_OTHER_PLACE = "This is not the machine or folder that the call worked on."
REPO_NOT_GONE = "The process that ran the call may still be there."
REPO_NOT_ALONE = "Other calls may have changed the repository since."
REPO_UNTOUCHED = "Nothing in the repository was written since before the call."
REFS_AS_BEFORE = "HEAD and the refs are where they were before the call, and their logs are the same ones."
HEAD_MOVED = "HEAD is not where it was before the call, but nothing says that this call moved it."
HEAD_UNMOVED = "HEAD is where it was before the call; whether files or the index were changed is not known."
REF_MOVED = "A ref has another value than before the call, but nothing says that this call is the reason."
INDEX_WRITTEN = "The index was written and HEAD has not moved; whether files were changed is not known."
LOCKS_LEFT = "Left behind: {}; remove it once no git runs there, since git stops at it."
IN_PROGRESS = "{} is in progress that was not before the call."
GIT_STATES = {
    "MERGE_HEAD": "A merge",
    "CHERRY_PICK_HEAD": "A cherry-pick",
    "REVERT_HEAD": "A revert",
    "BISECT_LOG": "A bisection",
    "MERGE_AUTOSTASH": "A merge with its autostash",
    "rebase-merge": "A rebase",
    "rebase-apply": "A rebase or an am",
    "sequencer": "A cherry-pick or revert of several commits",
}
AFTERWARDS = "{}. What git runs after it (hooks, gc) may have been cut off."
COMMITTED = "{} moved from {} to {}, the commit of this call"
INDEX_NOT_WRITTEN = "{}; but the index was not written: it differs from the commit."
MOVED_BY = "{} moved to {} by this {}"
REBASED = "{} was rebased, to {}"
CHECKED_OUT = "HEAD is at {}, as this call was to leave it"
CHECKOUT_BEGUN = "The branch {} was made, but HEAD is not on it."
RESET = "{} was reset to {}, which is {}."
STASHED = "The changes are in the stash, as {}."
STASH_BEGUN = "The changes are in the stash, as {}, but they may still be in the working tree, too."
UNSTASHED = "The newest stash entry is gone, which is the last thing that this call does."
TAG_GONE = "The tag {} is gone."
TAG_MADE = "The tag {} is there, at {}, and was not before."
BRANCH_MADE = "The branch {} is there, at {}, as it was not before."
BRANCH_GONE = "The branch {} is gone."
BRANCH_SETTINGS_LEFT = "The branch {} is gone, but its settings are still there."
BRANCH_RENAMED = "The branch {} is there, and the old name is gone."
BRANCH_HEAD_LEFT = "The branch {} is there, but HEAD still names the old one."
BRANCH_OLD_SETTINGS = "The branch {} is there, but its settings are still those of the old name."
PUSHED = "{} took {} as {}: {} says so."
PUSH_OPEN = "The remote may have taken it or not: {} tells."
INDEX_ADDED = "The index lists what this call was to add, as it is in the working tree."
INDEX_REMOVED = "The index lists {}{} no more."
INDEX_RENAMED = "The index lists {}, and {} no more."
FOLDER_NOT_KNOWN = "Nothing is known of the folder before the call."
FOLDER_AS_BEFORE = {  # by what was there before
    "none": "{} holds no repository, as before the call.",
    "absent": "{} is not there, as before the call.",
    "empty": "{} is empty, as before the call.",
}
FOLDER_MADE = "{} is a whole {}, and was none before the call."
FOLDER_UNBORN = "{} is a repository without a commit: of an empty remote, or cut off."
INIT_BEGUN = "{} was begun and is not whole: the same command again makes it whole."
FOLDER_BEGUN = "{} was begun and is not whole: remove it before you repeat the call."
WORKTREE_BRANCH_NOT_KNOWN = "{} Whether a branch was made for it is not known."
