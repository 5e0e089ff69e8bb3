"""Read shell text: its commands, words and wrappers. Pure."""
