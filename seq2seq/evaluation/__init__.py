"""BLEU, chrF and TER with signatures; significance tests."""
