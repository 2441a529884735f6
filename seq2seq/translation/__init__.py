"""Translation of lines of text: `Translator`, long lines, retries, text generation, rescoring, worker processes."""
