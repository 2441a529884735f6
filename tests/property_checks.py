"""Properties that are checked on a few examples in each run of the tests, and on many examples in a slow test."""

import pytest
from hypothesis import given, settings


def few_and_many(few, many, *strategies):
    """Turn a function that checks an example into a test (decorator). few, many: numbers of examples."""

    def decorate(check):
        @pytest.mark.parametrize("examples", [few, pytest.param(many, marks=pytest.mark.slow)])
        def test(examples):
            settings(max_examples=examples, deadline=None)(given(*strategies)(check))()

        test.__name__, test.__doc__ = check.__name__, check.__doc__
        return test

    return decorate
