"""Attention for the eye: a page for the browser, and a picture."""
