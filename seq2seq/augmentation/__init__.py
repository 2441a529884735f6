"""Data augmentation and subword sampling, drawn anew in each epoch; token noise, word alignment, changed test sets."""
