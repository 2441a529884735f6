"""Translation over HTTP: LibreTranslate's interface and DeepL's.

Starlette and uvicorn belong to the extra `serve`, so only the command `seq2seq serve` and tests import these modules.
"""
