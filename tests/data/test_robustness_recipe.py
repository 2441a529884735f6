"""The script of recipes/robustness."""

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "recipes" / "robustness" / "measure.py"


def test_a_model_that_only_knows_lower_case_loses_capitals_but_not_the_words():
    spec = importlib.util.spec_from_file_location("measure_robustness", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    references = ["the small dog sees a red cat.", "two cats hear one blue dog."]
    translation = {"der": references[0], "zwei": references[1]}
    sources = ["der kleine Hund sieht eine rote Katze.", "zwei Katzen hören einen blauen Hund."]
    scores = module.measure(lambda lines: [translation[line[:4].strip().lower()] for line in lines], ("de", "en"),
                            sources, references)
    assert list(scores) == ["clean", "upper_case", "title_case", "no_final_stop", "typos"]
    assert scores["clean"] == (pytest.approx(100), pytest.approx(100))
    assert scores["upper_case"][0] < 20 and scores["upper_case"][1] == pytest.approx(100)
    assert scores["no_final_stop"][0] < 100
