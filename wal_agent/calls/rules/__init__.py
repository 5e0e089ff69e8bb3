"""The rows that say what a program does, and which of them fits a command."""
