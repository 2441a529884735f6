"""Data augmentation, subword sampling and token noise for training; word alignment; robustness slices of test sets."""
