"""Scores of translations (BLEU, chrF, TER, exact match), perplexities, and significance tests."""
