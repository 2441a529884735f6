"""Placeholders and terms that a translation must keep."""
