"""Translation over HTTP: LibreTranslate's interface, and `/v2/translate` and `/v2/languages` of DeepL's interface.

Starlette and uvicorn belong to the extra `serve`, so only the command `seq2seq serve` and tests import these modules.
"""
