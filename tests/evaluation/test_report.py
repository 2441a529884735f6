"""The report of runs, bundles and files of translations: one page, whose figures are those of `evaluate`."""

import json
import random
import re
from functools import partial
from html.parser import HTMLParser
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pytest
from toy import train_toy

from seq2seq.cli import main
from seq2seq.documents.adherence import report_columns
from seq2seq.evaluation import systems
from seq2seq.evaluation.calibration import MIN_SENTENCES, fit, isotonic, reliability
from seq2seq.evaluation.error_analysis import buckets, ngram_differences, scores_with_intervals, word_frequencies
from seq2seq.evaluation.recipe_tests import TestSet, read_tests
from seq2seq.evaluation.report_page import page
from seq2seq.evaluation.scores import corpus_scores
from seq2seq.evaluation.systems import System, read_system, tell_apart
from seq2seq.recipe import load_recipe, parse_recipe
from seq2seq.storage.checkpoints import best_bundle
from seq2seq.training.run import train

RECIPE = """
name: a
languages: {{source: de, target: en}}
data: {{train: [{{source: a.de, target: a.en}}], valid: {{source: b.de, target: b.en}}}}
model: {{d_model: {size}, num_heads: 2}}
training: {{max_steps: {steps}}}
"""
REFERENCES = ["a cat sleeps", "two dogs run", "the red house stands alone"]
SOURCES = ["eine Katze schläft", "zwei Hunde laufen", "das rote Haus steht allein"]
TRANSLATIONS = ["a cat sleeps", "two cats run", "the the house"]


class Page(HTMLParser):
    """Reads a page: the tags, the text of the tables, and the values of the script."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.cells, self.values, self.inside = [], [], None, ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.inside = "data" if ("id", "data") in attributes else tag

    def handle_endtag(self, tag):
        self.inside = ""

    def handle_data(self, data):
        if self.inside == "data":
            self.values = json.loads(data)
        elif self.inside in ("td", "th"):
            self.cells.append(data)


def system(name="ours", translations=TRANSLATIONS, **fields):
    return System(name, None, {"news": list(translations)}, **fields)


def news(sources=SOURCES, references=REFERENCES):
    return TestSet("news", list(sources), list(references), ("de", "en"))


def test_the_figures_are_those_of_evaluate():
    found = Page(page([system()], [news()]))
    expected = corpus_scores(TRANSLATIONS, [REFERENCES], "en")
    for metric in ("bleu", "chrf", "ter"):
        assert any(cell.startswith(f"{expected[metric].value:.2f} ± ") for cell in found.cells)
    assert found.values["tests"][0]["translations"] == [TRANSLATIONS]
    assert found.values["tests"][0]["chrf"][0][0] == 100.0


def test_scores_and_sentences_come_first_and_only_settings_that_differ_are_shown():
    ours = parse_recipe(RECIPE.format(size=16, steps=7), "recipe.yaml")
    theirs = parse_recipe(RECIPE.format(size=16, steps=11).replace("name: a", "name: b"), "recipe.yaml")
    text = page([system(recipe=ours), system("theirs", recipe=theirs), system("file")], [news()])
    titles = re.findall("<h2>(.*?)</h2>", text)
    assert titles[:2] == ["Scores", "Sentences"] and titles[-1] == "Settings that differ"
    cells = Page(text[text.index("Settings that differ</h2>"):]).cells
    assert cells == ["key", "ours", "theirs", "training.max_steps", "7", "11"]
    alone = Page(page([system(recipe=ours)], [news()])).cells
    assert alone[alone.index("training.max_steps") + 1] == "7" and "model.d_model" in alone


def test_the_page_names_its_language_and_controls_and_its_headings_are_in_order():
    text = page([system(), system("theirs")], [news()])
    assert '<html lang="en">' in text
    levels = [int(level) for level in re.findall(r"<h(\d)", text)]
    assert levels[0] == 1 and all(after <= before + 1 for before, after in pairwise(levels))
    assert len(re.findall("<label>[^<]+<(?:select|input) ", text)) == len(re.findall("<(?:select|input) ", text)) == 4
    assert all("aria-label=" in button for button in re.findall("<button [^>]*>", text))


def test_intervals_contain_the_score_and_shrink_with_more_text():
    few = scores_with_intervals(TRANSLATIONS * 3, REFERENCES * 3, "en", ["chrf"])["chrf"]
    many = scores_with_intervals(TRANSLATIONS * 90, REFERENCES * 90, "en", ["chrf"])["chrf"]
    assert few.mean - few.half <= few.value <= few.mean + few.half and many.half < few.half / 3


def test_translations_that_are_almost_empty_have_intervals_too():
    found = scores_with_intervals(["hello world", "", ""], ["the cat sat on the mat", "b c d e", "f g h"], "en",
                                  ["bleu", "chrf", "ter"])
    assert found["bleu"].value == found["bleu"].half == 0 and found["ter"].value == 100


def test_several_systems_are_compared_with_the_first():
    found = Page(page([system(), system("theirs", REFERENCES), system("same")], [news()]))
    assert "Differences are to ours." in page([system(), system("theirs", REFERENCES)], [news()])
    # Two systems, three metrics.
    assert sum("too few lines differ for a test" in cell for cell in found.cells) == 6
    assert found.values["systems"] == ["ours", "theirs", "same"]


@pytest.mark.parametrize("hostile", [
    "</script><img src=x onerror=alert(1)>", "{{data}} {{title}}", "\u202e\u0000\x1b[31m\u2028\u2029",
    *(pytest.param(text, marks=pytest.mark.slow) for text in (
        "<script>alert(1)</script>", "<!--", "]]>", "&lt;b&gt;", "שלום עולם"))])
def test_hostile_text_stays_text(hostile):
    text = page([system(hostile, [hostile] * 3)], [news([hostile] * 3, [hostile] * 3)])
    plain = page([system()], [news()])
    found = Page(text)
    assert set(found.tags) <= set(Page(plain).tags) and found.tags.count("script") == 2
    shown = found.values["tests"][0]["translations"][0][0]
    assert shown == hostile
    assert "\x1b" not in text and "\x00" not in text
    assert "http:" not in re.sub(r"http://www.w3.org/\d+/svg", "", plain) and "https:" not in plain


@pytest.mark.slow
def test_kept_placeholders_and_tags_are_counted():
    sources = ["<b>Hallo</b> {name}!", "Datei %s von %s"]
    test = news(sources, ["Hello", "File"])
    columns = partial(report_columns, None)
    cells = Page(page([system(translations=["<b>Hi</b> you!", "File %s of %s and %s"])], [test], columns=columns)).cells
    assert cells[cells.index("placeholders and tags kept"):].count("4 of 5") == 1
    assert "placeholders and tags kept" not in Page(page([system()], [news()], columns=columns)).cells


def test_sources_are_shown_without_their_context():
    found = Page(page([system()], [news([f"davor␞ {source}" for source in SOURCES])]))
    assert found.values["tests"][0]["sources"] == SOURCES


def test_ten_systems_fit_into_a_page():
    count = 30
    rng = random.Random(1)
    words = [f"w{number}" for number in range(500)]
    lines = [" ".join(rng.choices(words, k=13)) for _ in range(count)]
    text = page([system(f"system {number}", lines) for number in range(10)], [news(lines, lines)])
    assert len(text) < 50_000 + 2_650 * count                           # 8 MB for 3,000 sentences


def test_isotonic_regression_equals_brute_force():
    rng = np.random.default_rng(1)
    grid = np.linspace(0, 4, 9)
    for _ in range(20):
        values = rng.integers(0, 5, 4).astype(float)
        found = isotonic(values)
        assert (np.diff(found) >= 0).all()
        ascending = [np.array(each) for each in product(grid, repeat=4) if list(each) == sorted(each)]
        best = min(sum((each - values) ** 2) for each in ascending)
        assert sum((found - values) ** 2) <= best + 1e-9
    assert isotonic(np.array([1.0, 2, 3])).tolist() == [1, 2, 3]
    assert isotonic(np.array([3.0, 1, 2])).tolist() == [2, 2, 2]


def test_calibration_recovers_how_confidence_and_quality_are_related():
    rng = np.random.default_rng(2)
    confidences = -rng.exponential(0.5, 4000)
    scores = np.clip(90 + 60 * confidences + rng.normal(0, 8, 4000), 0, 100)
    calibration = fit(confidences[:2000], scores[:2000])
    expected, spread = calibration.expected([-0.5])
    assert expected[0] == pytest.approx(60, abs=3) and spread[0] == pytest.approx(8, abs=2)
    found = reliability(calibration, confidences[2000:], scores[2000:])
    assert found.error < 1.5 and sum(count for count, _, _ in found.rows) == 2000
    assert fit(confidences[:MIN_SENTENCES - 1], scores[:MIN_SENTENCES - 1]) is None


def test_groups_are_complete_and_disjoint():
    frequencies = word_frequencies(["eine Katze, eine Katze", "zwei Hunde"], "de")
    assert frequencies["katze"] == 2
    for groups in buckets(SOURCES, "de", frequencies).values():
        members = [index for group in groups for index in group.sentences]
        assert sorted(members) == [0, 1, 2]
    unseen = buckets(SOURCES, "de", frequencies)["source words that are not in the training text"]
    assert {group.name: group.sentences for group in unseen} == {"1": [0, 1], "2 or more": [2]}
    assert list(buckets(SOURCES, "de", None)) == ["words in the source"]
    assert buckets(["我喜欢猫"], "zh", None)["words in the source"][0].name == "1 to 5"


def test_ngrams_are_counted_in_translations_and_references():
    over, under = ngram_differences(TRANSLATIONS, REFERENCES, "en")
    assert ("the the house", 1, 0) in over and ("dogs", 0, 1) not in under and ("two dogs run", 0, 1) in under
    assert all(ours > theirs for _, ours, theirs in over) and all(ours < theirs for _, ours, theirs in under)
    assert ngram_differences(REFERENCES, REFERENCES, "en") == ([], [])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    train_toy(folder)
    train(load_recipe(folder / "recipe.yaml", ["seed=2", "training.max_steps=5"]), folder / "other")
    return folder


def test_runs_are_reported_with_curves_settings_and_robustness(folder, tmp_path, capsys):
    command = ["report", str(folder / "run"), str(best_bundle(folder / "other")), "--output", str(tmp_path / "r.html")]
    assert main([*command, "--robustness", "--threads", "1", "--precision", "fp32"]) == 0
    told = " ".join(capsys.readouterr().err.split())
    assert all(f" of {text} with {best_bundle(folder / 'other')} in fp32" in told
               for text in ("small", "small: typos", "the validation set"))
    text = (tmp_path / "r.html").read_text()
    found = Page(text)
    assert found.values["systems"] == ["run", "other"] and text.count("<svg") == 1      # a bundle has no log
    metadata = json.loads((best_bundle(folder / "run") / "metadata.json").read_text())
    assert any(cell.startswith(f"{metadata['test']['small']['chrf']['value']:.2f} ± ") for cell in found.cells)
    assert {"seed", "training.max_steps", "upper case", "typos", "train.en"} <= set(found.cells)
    assert metadata["sha256"]["model.safetensors"] in found.cells


@pytest.mark.slow
def test_two_runs_are_drawn_in_the_same_panels(folder, tmp_path):
    command = ["report", str(folder / "run"), str(folder / "other"), "--output", str(tmp_path / "r.html")]
    assert main([*command, "--threads", "1"]) == 0
    text = (tmp_path / "r.html").read_text()
    (picture,) = re.findall(r"<svg.*?</svg>", text, flags=re.DOTALL)
    texts = re.findall(r"<text [^>]*>([^<]*)</text>", picture)
    assert texts[:4] == ["2 runs", "run", "other", "loss, training (smoothed labels)"]
    assert [text for text in texts if "validation" in text] == ["loss, validation", "BLEU, validation"]
    # The other run has five steps: two records of the training, and one validation, which is a point.
    assert picture.count('class="system0 curve"') == 5 and picture.count('class="system1 curve"') == 3
    assert picture.count('<circle class="system1"') == 2


def test_systems_of_the_same_name_are_told_apart():
    systems = [System("run", Path(path)) for path in ("a/run", "b/run")]
    assert [system.name for system in tell_apart(systems)] == ["a/run", "b/run"]


def translate_with_ballast(translate, *arguments):
    np.ones(50_000_000)                                                         # 400 MB
    return translate(*arguments)


@pytest.mark.slow
def test_the_memory_of_each_model_is_what_its_translations_need(folder, monkeypatch):
    tests = read_tests([folder / "run"], None, [], None)
    held = np.ones(50_000_000)                                                  # 400 MB that something else holds
    small = read_system(folder / "run", tests, device="cpu", threads=1).peak_megabytes
    del held

    monkeypatch.setattr(systems, "_translate", partial(translate_with_ballast, systems._translate))
    large = read_system(folder / "run", tests, device="cpu", threads=1).peak_megabytes
    if not large:
        pytest.skip("this system does not tell the peak memory of a process")
    assert small < 100 and 350 < large < 500


def test_files_and_a_model_are_reported_on_given_text(folder, tmp_path):
    lines = (folder / "valid.de").read_text()
    (tmp_path / "nan").write_text("0.5\nnan\n" + "0.5\n" * 5)
    (tmp_path / "theirs").write_text(lines)
    (tmp_path / "comet").write_text("0.5\n" * 7)
    command = ["report", str(folder / "run"), str(tmp_path / "theirs"), "--source", str(folder / "valid.en"),
               "--reference", str(folder / "valid.de"), "--output", str(tmp_path / "r.html"), "--scores",
               f"comet={tmp_path / 'comet'}", "--scores", f"comet={tmp_path / 'comet'}"]
    assert main(command) == 0
    found = Page((tmp_path / "r.html").read_text())
    assert found.cells.count("0.5000") == 2 and any(cell.startswith("100.00 ± ") for cell in found.cells)
    for wrong in (["--scores", "comet"], ["--scores", f"other={tmp_path / 'comet'}"],
                  ["--scores", f"other={tmp_path / 'theirs'}"], ["--scores", f"other={tmp_path / 'nan'}"],
                  ["--output", str(tmp_path / "none" / "r.html")]):
        assert main([*command, *wrong]) == 2


def test_an_output_that_cannot_be_written_is_an_error_before_translation(folder, tmp_path, capsys, monkeypatch):
    def refusing(path, flags):
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr("seq2seq.translation.text_io.open_without_links", refusing)
    monkeypatch.setattr("seq2seq.evaluation.systems.read_system", lambda *_, **__: pytest.fail("the system was read"))
    assert main(["report", str(folder / "run"), "--output", str(tmp_path / "r.html")]) == 2
    assert str(tmp_path / "r.html") in "".join(capsys.readouterr().err.split())


def test_missing_files_are_errors(folder, tmp_path):
    empty, blank = tmp_path / "empty", tmp_path / "blank"
    for path, text in ((tmp_path / "short", "eins\n"), (empty, ""), (blank, "\n \n")):
        path.write_text(text)
    target = folder / "valid.de"
    for arguments in ([tmp_path / "short"], [tmp_path / "short", "--reference", target],
                      [folder / "run", "--reference", target], [tmp_path / "none", "--reference", target],
                      [empty, "--reference", empty], [blank, "--reference", blank],
                      [folder / "run", "--source", folder / "valid.en"], [folder / "run", "--target-language", "de"],
                      [folder / "run", "--source", folder / "valid.en", "--reference", target, "--target-language",
                       "zh"],
                      [folder / "run", "--output", tmp_path]):
        assert main(["report", "--output", str(tmp_path / "r.html"), *map(str, arguments)]) == 2
    assert not (tmp_path / "r.html").exists()
    assert read_tests([folder / "run"], None, [], None)[0].name == "small"
