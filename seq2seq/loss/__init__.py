"""Training losses, computed from the output of a model and the target tokens."""
