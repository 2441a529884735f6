"""Files that survive a crash: atomic directories, locks, checksums, checkpoints, averaging, run directories."""
