"""Adaptation of a trained model to the text of a domain."""
