"""The measured claims. Each is a ratio, in one run, against what a user would run instead."""
