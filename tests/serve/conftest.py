"""A server with models that name the direction, shared by the tests of a file; no lemmatizers."""

import pytest
from served import serving


@pytest.fixture(autouse=True)
def no_lemmatizer(monkeypatch):
    """Lemmatizers take seconds to load."""
    monkeypatch.setattr("seq2seq.data.words._lemmatizer", lambda language: None)


@pytest.fixture(scope="module")
def echo():
    with serving() as (url, _, _):
        yield url
