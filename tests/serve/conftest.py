"""A server with models that name the direction, shared by the tests of a file."""

import pytest
from served import serving


@pytest.fixture(scope="module")
def echo():
    with serving() as (url, _, _):
        yield url
