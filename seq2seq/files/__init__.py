"""Compressed files, JSON, and YAML with line numbers."""
