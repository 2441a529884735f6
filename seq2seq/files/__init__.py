"""Files: compressed ones, JSON, and YAML with line numbers."""
