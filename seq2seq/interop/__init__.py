"""Conversion to and from the model formats of other libraries.

The libraries are optional dependencies (the extra `interop` of seq2seq-mt). Each library is imported only in the
functions that need it.
"""
