"""Convert text to ids and back: sentencepiece models, whole words, Marian vocabularies, subword sampling."""
