"""Conversion to and from the model formats of other libraries, one module for each format and direction.

The libraries are optional dependencies (the extra `interop` of seq2seq-mt). Each is imported inside the functions that
need it.
"""
