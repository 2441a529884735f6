"""Other people's formats, one a file, each imported only when it is asked for.

Their libraries are the extra `interop` of seq2seq-mt; what needs one imports it inside the function that does.
"""
