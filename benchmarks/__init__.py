"""Speed and memory, side by side with what a user would pick instead."""
