"""Alignments, and attention as text, web page and picture."""
