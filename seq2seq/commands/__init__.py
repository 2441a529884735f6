"""The commands, one a file: what each reads from the command line, and what it prints."""
