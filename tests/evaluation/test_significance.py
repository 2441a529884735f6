"""Tests of comparisons of two systems. The expected values are printed by sacreBLEU's command for the same files."""

import json
import random
import re
import subprocess
import sys

import pytest
from command_files import save_model

from seq2seq.cli import main
from seq2seq.errors import CorpusError
from seq2seq.evaluation.decoding_trials import Trial, format_trials
from seq2seq.evaluation.significance import Comparison, Estimate, compare, format_comparison, signed

WORDS = ["the", "a", "man", "woman", "dog", "runs", "sits", "in", "on", "park", "snow", "red", "blue", "house"]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Files of 97 reference sentences and of two systems, with about 20 % and 25 % of the words wrong."""
    folder, rng = tmp_path_factory.mktemp("systems"), random.Random(4)
    reference = [[rng.choice(WORDS) for _ in range(rng.randint(4, 14))] for _ in range(97)]
    for name, error in (("reference", 0), ("good", 0.2), ("bad", 0.25)):
        lines = [" ".join(rng.choice(WORDS) if rng.random() < error else word for word in line) for line in reference]
        (folder / name).write_text("".join(line + "\n" for line in lines))
    return folder


def lines(path):
    return path.read_text().splitlines()


def sacrebleus(files, *options):
    """Parse the output of sacreBLEU's command line (its JSON fails on NumPy numbers).

    Returns for each of bleu, chrf and ter the figures of the first system, those of the second, and the p-value.
    Figures: the score and, if any, mean and interval.
    """
    printed = subprocess.run(
        [sys.executable, "-m", "sacrebleu", files / "reference", "-i", files / "bad", files / "good", "-m", "bleu",
         "chrf", "ter", "-f", "text", "-w", "4", *options], capture_output=True, text=True, check=True).stdout
    rows = [line.split("│")[2:5] for line in printed.splitlines() if line.startswith("│")][1:4]
    found = [[[float(number) for number in re.findall(r"\d+\.\d+", cell)] for cell in row] for row in rows]
    return zip(("bleu", "chrf", "ter"), *found, strict=True)


@pytest.mark.parametrize("test, options", [("bootstrap", ["--paired-bs", "--paired-bs-n", "150"]),
                                           ("randomization", ["--paired-ar", "--paired-ar-n", "150"])])
def test_the_figures_are_those_of_sacrebleus_command(files, test, options):
    ours = compare(lines(files / "good"), lines(files / "bad"), [lines(files / "reference")], "en", test=test,
                   samples=150)
    for metric, bad, good, (p_value,) in sacrebleus(files, *options):
        found = ours[metric]
        assert found.p_value == pytest.approx(p_value, abs=1e-4)
        for estimate, printed in ((found.system, good), (found.baseline, bad)):
            assert len(printed) == (3 if test == "bootstrap" else 1)
            assert [estimate.value, estimate.mean, estimate.interval][:len(printed)] == pytest.approx(printed, abs=1e-4)


@pytest.mark.parametrize("test", ["bootstrap", "randomization"])
def test_a_system_does_not_differ_from_itself(files, test):
    good, reference = lines(files / "good"), lines(files / "reference")
    found = compare(good, good, [reference], "en", ["bleu"], test, samples=50)
    assert found["bleu"].difference == 0 and found["bleu"].p_value is None
    assert "the translations differ in 0 lines" in format_comparison(found, "good", "good again")


def test_systems_of_the_same_score_do_not_differ_significantly(files):
    reference = lines(files / "reference")
    found = compare([f"{line}  " for line in reference], reference, [reference], "en", ["bleu"], samples=50)
    assert found["bleu"].difference == 0 and found["bleu"].lines_that_differ == 97
    assert found["bleu"].p_value == 1 and "not significant" in format_comparison(found, "good", "good again")


@pytest.mark.parametrize("test", ["bootstrap", "randomization"])
def test_too_few_differing_lines_give_no_significance(files, test):
    """The smallest two-sided p-value for n lines is 2 / 2^n: 1/16 for 5 lines, 1/32 for 6."""
    bad, reference = lines(files / "bad"), lines(files / "reference")
    places = [place for place, line in enumerate(bad) if line != reference[place]]
    for count in (1, 5, 6):
        worse = [bad[place] if place in places[:count] else line for place, line in enumerate(reference)]
        found = compare(reference, worse, [reference], "en", ["chrf"], test, samples=50)
        assert found["chrf"].lines_that_differ == count and (found["chrf"].p_value is None) == (count < 6)
        told = format_comparison(found, "one", "other")
        assert ("significant" in told) == (count == 6)
        assert (f"differ in {count} line{'s' * (count > 1)}; a test needs 6 to reach p < 0.05" in told) == (count < 6)


def test_the_command_prints_both_systems_and_the_verdict(files, capsys):
    arguments = ["compare", str(files / "good"), str(files / "bad"), "--reference", str(files / "reference"),
                 "--metric", "bleu", "--samples", "100"]
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert "BLEU  nrefs:1|bs:100|seed:12345|case:mixed" in out and out.index("good") < out.index("bad")
    assert "difference" in out and "p = 0.0" in out and "significant at 0.05" in out
    assert main([*arguments, "--format", "json", "--paired", "randomization"]) == 0
    printed = json.loads(capsys.readouterr().out)["bleu"]
    assert printed["difference"] == pytest.approx(printed["system"]["value"] - printed["baseline"]["value"])


def test_lines_that_do_not_match_are_refused(files):
    good, reference = lines(files / "good"), lines(files / "reference")
    with pytest.raises(CorpusError):
        compare(good, good[:-1], [reference], "en", samples=10)


def test_several_systems_are_each_compared_with_the_first(files, capsys, monkeypatch):
    monkeypatch.chdir(files)
    command = ["compare", "good", "bad", "reference", "--reference", "reference", "--metric", "chrf", "--samples", "50"]
    assert main(command) == 0
    assert capsys.readouterr().out.count("difference") == 2
    assert main([*command, "--format", "json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert list(printed) == ["bad", "reference"]
    assert printed["bad"]["chrf"]["baseline"] == printed["reference"]["chrf"]["baseline"]
    assert printed["bad"]["chrf"]["difference"] < 0 < printed["reference"]["chrf"]["difference"], "a gain is positive"


@pytest.mark.parametrize("options", [["bad", "--metric", "exact"], [], ["bad", "--recipe", "recipe.yaml"]])
def test_invalid_comparisons_are_refused(files, monkeypatch, options):
    monkeypatch.chdir(files)
    assert main(["compare", "good", *options, "--reference", "reference"]) == 2


def test_a_baseline_model_needs_a_source_and_files_are_checked_before_translating(files, capsys, monkeypatch):
    from seq2seq.cli import compare

    model = save_model(files / "model")
    arguments = ["compare", str(files / "good"), str(model), "--reference", str(files / "reference")]
    assert main(arguments) == 2
    assert "with --source" in capsys.readouterr().err
    loaded = []
    monkeypatch.setattr(compare, "load_translator", lambda path, *_: loaded.append(path))
    (files / "short").write_text("one line\n")
    assert main([*arguments, "--source", str(files / "short")]) == 2            # the option that the message asked for
    assert "short: 1 line; " in capsys.readouterr().err
    assert main(["compare", str(model), str(files / "missing"), "--source", str(files / "good"), "--reference",
                 str(files / "reference")]) == 2
    assert "missing does not exist" in capsys.readouterr().err
    assert not loaded


def trial(value, p_value, length_penalty):
    """A value of length_penalty beside the present value, which has a score of 30."""
    found = Comparison(Estimate(value, value, 1.0), Estimate(30.0, 30.0, 1.0), p_value, "signature", 40)
    return Trial({"length_penalty": length_penalty}, value, 1.0, found)


def test_only_a_significantly_better_value_is_for_the_recipe():
    present = Trial({"length_penalty": 1.0}, 30.0, 1.0)
    better, worse = trial(30.5, 0.01, 0.8), trial(28.0, 0.01, 0.8)
    for others, expected in (
            ([trial(30.9, 0.2, 0.6), better], ["for the recipe: decoding: {length_penalty: 0.8}", "0.6 is the lowest"]),
            ([trial(30.9, 0.2, 0.6), worse], ["no value is significantly better", "0.6 is the lowest"]),
            ([trial(29.999, 0.4, 1.4), worse], ["the present value has the best score"])):
        table = format_trials([present, *others], "bleu").splitlines()
        told = table[5:]
        assert len(told) == len(expected) and all(part in line for part, line in zip(expected, told, strict=True))
        assert not any("-0.00" in line for line in table)
    assert signed(-0.001) == "+0.00" and signed(-0.006) == "-0.01"
