"""Benchmarks of the speed and memory of seq2seq, compared with other libraries."""
