"""Corpora: readers, cleaning, language identification, preparation and packed batches."""
