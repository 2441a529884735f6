"""Text to ids and back: sentencepiece, whole words, Marian vocabularies, subword sampling."""
