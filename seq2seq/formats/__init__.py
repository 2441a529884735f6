"""Formats of text: a format finds the texts of a file, and puts their translations in their place. No format knows a
model."""
