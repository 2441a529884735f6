"""Lines in, translations out: Translator, long lines, retries, generation, rescoring, worker processes."""
