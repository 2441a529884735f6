"""Translation over HTTP: the interface of LibreTranslate, and `/v2/translate` of DeepL.

Starlette and uvicorn are in the extra `serve`, so only the command `seq2seq serve` and tests import these modules.
"""
