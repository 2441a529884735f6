"""Tests of the comparison of recipes that were trained with several seeds."""

import random

import numpy as np
import pytest

from seq2seq.evaluation import seeds
from seq2seq.evaluation.group_report import GroupReport, Table
from seq2seq.evaluation.seeds import GroupScore, compare_groups
from seq2seq.evaluation.significance import compare

WORDS = ["the", "a", "man", "woman", "dog", "runs", "sits", "in", "on", "park", "snow", "red", "blue", "house"]


def translations(error, seed, lines=97):
    """Return references, and translations with this share of wrong words."""
    text, noise = random.Random(4), random.Random(seed)
    references = [[text.choice(WORDS) for _ in range(text.randint(4, 14))] for _ in range(lines)]
    changed = [" ".join(noise.choice(WORDS) if noise.random() < error else word for word in line)
               for line in references]
    return [" ".join(line) for line in references], changed


def group(error, *numbers):
    return [translations(error, number)[1] for number in numbers]


REFERENCES = translations(0, 0)[0]


def test_equal_recipes_differ_significantly_as_rarely_as_the_level_says_and_single_seeds_far_more_often(monkeypatch):
    monkeypatch.setattr(seeds, "T_DRAWS", 5000)
    draw, trials, lines = np.random.default_rng(0), 150, 200
    of_three = of_one = 0
    for _ in range(trials):
        # Scores of lines: those of the text, a chance of training that all lines share, and one of each line.
        text = draw.normal(0, 20, lines)
        runs = [[text + draw.normal(0, 1) + draw.normal(0, 10, lines) for _ in range(3)] for _ in range(2)]
        chosen = draw.integers(0, lines, (100, lines))
        scores = [[run.mean() for run in of_group] for of_group in runs]
        sampled = [[run[chosen].mean(1) for run in of_group] for of_group in runs]
        _, _, p_value = seeds._test(*scores, np.mean(sampled[1], 0) - np.mean(sampled[0], 0))
        of_three += p_value < 0.05
        of_one += seeds._of_one_seed(scores[1][0] - scores[0][0], sampled[1][0] - sampled[0][0]) < 0.05
    assert of_three <= 0.08 * trials
    assert of_one > 0.25 * trials


@pytest.mark.parametrize(("values", "freedom"), [
    ([1.0, 2.0, 3.0], 4), ([1.0, 3.0], 2), ([1.0, 1.5, 2.0, 2.5, 3.0], 8)])
def test_without_chance_of_sentences_the_test_is_welchs(values, freedom):
    # Critical values of Student's t for 0.05 (two-sided), from its table.
    critical = {2: 4.303, 4: 2.776, 8: 2.306}[freedom]
    error = (2 * np.var(values, ddof=1) / len(values)) ** 0.5
    other = [value + critical * error for value in values]
    difference, interval, p_value = seeds._test(values, other, np.zeros(100))
    assert p_value == pytest.approx(0.05, abs=0.001)
    assert difference == pytest.approx(critical * error)
    assert interval == pytest.approx(critical * error, rel=0.01)


@pytest.mark.parametrize("metric", ["bleu", "chrf", "ter"])
def test_a_seed_alone_is_tested_as_compare_tests_two_runs(metric):
    good, bad = translations(0.2, 1)[1], translations(0.24, 2)[1]
    expected = compare(good, bad, [REFERENCES], "en", [metric], samples=200)[metric]
    (value, sampled), (other, of_other) = (
        seeds._resampled(lines, [REFERENCES], "en", metric, 200) for lines in (bad, good))
    assert (value, other) == (expected.baseline.value, expected.system.value)
    assert of_other.mean() == pytest.approx(expected.system.mean, rel=1e-6)
    assert seeds._of_one_seed(other - value, of_other - sampled) == expected.p_value


def test_a_difference_counts_if_it_holds_for_seeds_and_sentences():
    found = compare_groups({"bad": group(0.5, 1, 2, 3), "same": group(0.5, 4, 5, 6), "good": group(0.1, 7, 8, 9)},
                           [REFERENCES], "en", "bleu", 200)
    assert found["bad"].difference is found["bad"].p_value is None
    assert found["good"].significant and found["good"].difference > 20
    assert not found["same"].significant and abs(found["same"].difference) < found["same"].interval
    values = [compare(lines, lines, [REFERENCES], "en", ["bleu"], samples=1)["bleu"].system.value
              for lines in group(0.1, 7, 8, 9)]
    assert found["good"].values == values and found["good"].mean == pytest.approx(np.mean(values))
    assert found["good"].deviation == pytest.approx(np.std(values, ddof=1))


def test_equal_translations_and_a_single_seed_are_never_significant_by_themselves():
    same = group(0.2, 1, 1)
    assert compare_groups({"a": same, "b": same}, [REFERENCES], "en", "bleu", 50)["b"].p_value is None
    for metric in ("bleu", "ter"):
        both = {"a": group(0.2, 1, 2), "b": group(0.2, 1, 2)}
        assert compare_groups(both, [REFERENCES], "en", metric, 50)["b"].otherwise == []
    wrong = {name: [[f"{name} {number}" for number in range(len(REFERENCES))]] * 2 for name in ("x", "y")}
    assert compare_groups(wrong, [REFERENCES], "en", "ter", 50)["y"].otherwise == []
    one = compare_groups({"a": group(0.2, 1), "b": group(0.2, 2, 3)}, [REFERENCES], "en", "bleu", 50)["b"]
    assert one.p_value is not None
    assert compare_groups({"a": group(0.2, 1), "b": group(0.2, 2)}, [REFERENCES], "en", "bleu", 50)["b"].otherwise == []


def test_seeds_that_alone_would_have_said_otherwise_are_named():
    scores = {"a": GroupScore([30.0, 31.0, 32.0], 1.0),
              "b|<b>": GroupScore([31.0, 31.5, 35.0], 2.2, 1.5, 3.0, 0.2, [0, 2])}
    report = GroupReport({"a": {1: None, 2: None, 3: None}, "b|<b>": {1: None, 2: None, 4: None}},
                         {"news": {"bleu": scores}}, {"news": {"bleu": "nrefs:1|tok:13a"}},
                         {"news": {"a": 0.97, "b|<b>": 1.02}},
                         {"a": [[{"seconds": 60.0}, {"seconds": 90.0}]], "b|<b>": []},
                         Table("Systems", ["", "a", "b|<b>"], []))
    sentence = "b|<b> is not significantly different from a over all seeds; each of the seeds 1 and 4 against 3 alone"
    assert sentence in report.text() and sentence in report.markdown() and "1.5" in report.text()
    assert "| b\\|<b> | 32.50 | 2.20 | 31.00, 31.50, 35.00 | +1.50 ± 3.00 | 0.200 |" in report.markdown()
    assert "<b>" not in report._tables_as_html() and "b|&lt;b&gt;" in report._tables_as_html()
