"""Model cards: what the hub reads, odd names, private paths, and texts that users have written instead."""

import json
import sys

import pytest
import torch

from seq2seq.cli import main
from seq2seq.interop.model_card import Sizes, Usage, bundle_card, model_card
from seq2seq.recipe import parse_recipe
from seq2seq.recipe.recipe_differences import differences
from seq2seq.storage.checkpoints import load_bundle, save_bundle

RECIPE = """
name: de_en.2
languages: {source: de, target: en}
data:
  train:
    - {source: /home/anna/text/train.de, target: /home/anna/text/train.en, license: CC BY 2.0 FR, url: https://a.org/b}
    - {hub: wmt/wmt14, config: de-en, split: train, source: de, target: en}
    - {target: mono.en, translated_by: /home/anna/runs/en_de/bundles/one}
  valid: {source: valid.de, target: valid.en}
  test: {news: {source: news.de, target: news.en}}
"""
METADATA = {
    "step": 1700, "parameters": 1234567,
    "corpora": {"/home/anna/text/train.de": {"lines": 1009, "kept": 1007}, "wmt/wmt14": {"lines": 503, "kept": 503},
                "mono.en": {"lines": 101, "kept": 97}},
    "held_out": {"valid": 1013, "test.news": 3003},
    "test": {"news": {"bleu": {"value": 31.4159, "signature": "nrefs:1|tok:13a", "precision": "bf16"},
                      "chrf": {"value": 55.5, "signature": "nc:6"}}}}
SIZES = Sizes(11, 22_000_000, "fp32")
WEIGHTS = {"target_embedding": torch.zeros(13, 5)}


def recipe(text=RECIPE, **replaced):
    for old, new in replaced.items():
        assert old in text
        text = text.replace(old, new)
    return parse_recipe(text, "recipe.yaml")


def front_matter(card, tmp_path):
    """Return the header as the hub's library reads it."""
    hub = pytest.importorskip("huggingface_hub", reason="the library of the hub is not installed")
    (tmp_path / "card.md").write_text(card, encoding="utf-8")
    return hub.metadata_load(tmp_path / "card.md")


def save(place, text=RECIPE, card=bundle_card, **metadata):
    return save_bundle(place, WEIGHTS, text, {}, metadata, card)


def test_the_hub_reads_languages_task_data_sets_and_scores(tmp_path):
    front = front_matter(model_card(recipe(), METADATA, SIZES), tmp_path)
    from huggingface_hub import ModelCard
    from huggingface_hub.repocard_data import model_index_to_eval_results

    name, results = model_index_to_eval_results(front["model-index"])
    assert name == "de_en.2"
    assert [(result.task_type, result.dataset_name, result.metric_type, result.metric_value) for result in results] == [
        ("translation", "news", "bleu", 31.42), ("translation", "news", "chrf", 55.5)]
    del front["model-index"]
    assert front == {"language": ["de", "en"], "library_name": "seq2seq", "pipeline_tag": "translation",
                     "tags": ["seq2seq", "transformer"], "datasets": ["wmt/wmt14"]}
    assert ModelCard.load(tmp_path / "card.md").data.pipeline_tag == "translation"


@pytest.mark.parametrize(("given", "expected"), [
    ("cc-by-4.0", {"license": "cc-by-4.0"}), ("no", {"license": "no"}),
    ("CC BY 4.0", {"license": "other", "license_name": "CC BY 4.0"}),
    ("ours: v1", {"license": "other", "license_name": "ours: v1"}),
    ("a " * 50 + "--- b", {"license": "other", "license_name": "a " * 50 + "--- b"})])
def test_the_licence_of_the_model_is_that_of_the_recipe(given, expected, tmp_path):
    front = front_matter(model_card(recipe(f"license: {json.dumps(given)}\n{RECIPE}"), {}, SIZES), tmp_path)
    assert {key: value for key, value in front.items() if key.startswith("license")} == expected


@pytest.mark.parametrize(("languages", "expected"), [
    ("{source: deu, target: de_AT}", ["de"]), ("{source: nn, target: no}", ["nn", "nb"]),
    ("{source: qq, target: xx}", None)])
def test_languages_that_are_unknown_are_left_out_of_the_header(languages, expected, tmp_path):
    card = model_card(recipe(**{"{source: de, target: en}\ndata": f"{languages}\ndata"}), {}, SIZES)
    assert front_matter(card, tmp_path).get("language") == expected


def test_without_the_library_of_the_hub_only_the_header_is_left_out(monkeypatch):
    whole = model_card(recipe(), METADATA, SIZES)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    card = model_card(recipe(), METADATA, SIZES)
    assert card.startswith("---\n---\n\n# de_en.2\n") and whole.endswith(card.removeprefix("---\n"))


def test_the_text_has_sources_licences_sizes_and_signatures():
    card = model_card(recipe(), METADATA | {"tags": ["<law>"]}, SIZES)
    assert "- languages: German (de) to English (en)\n" in card and "- licence: not stated\n" in card
    assert "| train.de | train | 1,007 of 1,009 | CC BY 2.0 FR | <https://a.org/b> |" in card
    assert "| train | 503 of 503 |  | <https://huggingface.co/datasets/wmt/wmt14> |" in card
    assert "| mono.en | train | 97 of 101 |  |  |" in card
    assert "| valid.de | valid | 1,013 |" in card and "| news.de | test.news | 3,003 |" in card
    assert "| valid.de | valid |  |" in model_card(recipe(), {}, SIZES)
    assert "- parameters: 1,234,567\n" in card and "- weights: 22.0 MB (fp32)\n" in card
    assert "- checkpoint: step 1,700\n" in card and r"- tags of sources: \<law\>" in card
    assert r"| news | bleu | 31.42 | bf16 | nrefs:1\|tok:13a |" in card
    assert "seq2seq translate . < text.de > text.en" in card


def test_what_is_unknown_is_left_out():
    card = model_card(recipe(), {}, SIZES)
    assert "## Scores" not in card and "int8" not in card and "step" not in card and "tags of" not in card
    assert "## Data" not in model_card(recipe(), METADATA | {"imported_from": "Helsinki-NLP/opus-mt-de-en"}, SIZES)


def test_the_card_has_what_averaging_adaptation_and_validation_have_left_in_the_metadata():
    card = model_card(recipe(), {
        "averaged_steps": [500, 1000], "adaptation": {"chosen": {"share": 0.3}},
        "validation": {"loss": 2.5, "bleu": {"value": 41.0, "signature": "x"}}}, SIZES)
    assert "- averaged checkpoints: step 500, step 1,000\n" in card and "- adaptation: 30% new weights\n" in card
    assert "| validation | bleu | 41.00 |  | x |" in card and "loss" not in card


def test_a_model_of_several_languages_names_their_tokens():
    several = recipe(**{"split: train,": "split: train, languages: {source: de, target: fr},"})
    card = model_card(several, {}, SIZES)
    assert "German (de) to English (en), German (de) to French (fr)" in card and "`>>en<<`, `>>fr<<`" in card


def test_the_card_of_a_language_model_shows_how_to_generate_text(tmp_path):
    model = recipe("name: x\nlanguages: {target: en}\nmodel: {type: language_model}\n"
                   "data: {train: [{text: train.en}], valid: {text: valid.en}}\n")
    card = model_card(model, {}, SIZES)
    assert "seq2seq generate ." in card and "| corpus | use | lines |" in card and "languages: English (en)" in card
    assert front_matter(card, tmp_path)["pipeline_tag"] == "text-generation"


def test_the_card_has_bleu_in_int8_beside_the_reference():
    score = {"bleu": 41.93, "reference_bleu": 42.04, "reference_precision": "bf16", "sentences": 1014,
             "signature": "nrefs:1|tok:13a"}
    line, = [line for line in model_card(recipe(), METADATA | {"int8": score}, SIZES).splitlines() if "int8" in line]
    assert "41.93 in int8" in line and "42.04 in bf16" in line and "1,014" in line


def test_a_card_has_no_directories_of_the_user():
    metadata = METADATA | {"trained_from": "/home/anna/runs/first", "adaptation": {
        "chosen": {"share": 0.3}, "model": "/home/anna/run"}}
    started = recipe(f"{RECIPE}training: {{start_from: /home/anna/runs/first}}\n")
    card = model_card(started, metadata | {"imported_from": "/home/anna/models/opus"}, SIZES) + model_card(
        started, metadata, SIZES)
    assert "anna" not in card and "/home" not in card
    assert "- imported from: opus\n" in card and "- trained from: first\n" in card


def test_the_card_names_the_origin_of_an_imported_model_and_the_licence_of_one_that_was_trained_further():
    card = model_card(recipe(), METADATA | {"imported_from": "facebook/nllb-200-distilled-600M"}, SIZES)
    assert "- imported from: <https://huggingface.co/facebook/nllb-200-distilled-600M>\n" in card
    card = model_card(recipe(), METADATA | {"trained_from": "nllb", "licence_of_start": "cc-by-nc-4.0"}, SIZES)
    assert "- licence of the model that it was trained from: cc-by-nc-4.0\n" in card


def test_odd_names_break_neither_header_nor_tables(tmp_path):
    odd = recipe(**{"url: https://a.org/b": 'url: https://a.org/b, name: "a|b\\n---\\n| <x> `c"'})
    tests = {"y|z: yes\n---": {"bleu": {"value": 1, "signature": "|\n|"}}, "no": {"bleu": {"value": float("nan")}},
             "x\n---\n": {"a|b": {"value": 2}}}
    card = model_card(odd, METADATA | {"test": tests}, SIZES)
    assert front_matter(card, tmp_path)["language"] == ["de", "en"]
    assert r"| y\|z: yes --- | bleu | 1.00 |  | \| \| |" in card and r"| x --- | a\|b | 2.00 |" in card
    for row in (line for line in card.splitlines() if line.startswith("|")):
        assert row.replace(r"\|", "").count("|") in (6, 7)


@pytest.mark.parametrize("name", ["no", "---", "15", "1e5", "null", "-"])
def test_the_name_of_a_test_set_stays_text_in_the_header(name, tmp_path):
    odd = recipe(**{"{news: ": f"{{{json.dumps(name)}: "})
    front = front_matter(model_card(odd, {"test": {name: {"exact": {"value": 7}}}}, SIZES), tmp_path)
    result, = front["model-index"][0]["results"]
    assert result["dataset"]["name"] == name and result["metrics"] == [{"type": "exact_match", "value": 7}]


def test_a_quantised_export_does_not_claim_the_scores_of_the_original(tmp_path):
    card = model_card(recipe(), METADATA, SIZES, Usage("ctranslate2", "Run it.", lossless=False))
    front = front_matter(card, tmp_path)
    assert "model-index" not in front and front["library_name"] == "ctranslate2"
    assert "## Scores before the export" in card and "31.42" in card and "Run it." in card


def test_a_recipe_whose_paths_have_become_absolute_has_its_counts():
    text = RECIPE.replace("    - {target: mono.en, translated_by: /home/anna/runs/en_de/bundles/one}\n", "").replace(
        "    - {hub: wmt/wmt14, config: de-en, split: train, source: de, target: en}\n",
        "    - {source: /home/anna/more/train.de, target: /home/anna/more/train.en}\n")
    counts = {"a/train.de": {"lines": 1009, "kept": 1007}, "more/train.de": {"lines": 503, "kept": 499}}
    card = model_card(recipe(text), {"corpora": counts}, SIZES)
    rows = [line.split(" | ")[2] for line in card.splitlines() if line.startswith("| train.de")]
    assert rows == ["1,007 of 1,009", "499 of 503"]
    assert "1,007" not in model_card(recipe(text), {"corpora": {"a/train.de": {"lines": 1009, "kept": 1007}}}, SIZES)


# The file in a bundle


def test_a_bundle_gets_the_card_that_its_writer_asks_for(tmp_path):
    path = save(tmp_path / "bundle", step=3)
    card = (path / "README.md").read_text(encoding="utf-8")
    assert card.startswith("---\n") and "- checkpoint: step 3\n" in card
    assert "- parameters: 65\n- weights: 0.0 MB (fp32)\n" in card
    assert "README.md" not in json.loads((path / "metadata.json").read_text())["sha256"]
    assert not (save(tmp_path / "other", card=None) / "README.md").exists()


@pytest.mark.parametrize("fields", [
    {"step": "last"}, {"test": {"x": {"bleu": 30}}}, {"test": ["x"]}, {"parameters": "many"}, {"imported_from": 3},
    {"int8": {"bleu": 3}}, {"averaged_steps": 5}, {"adaptation": {"chosen": []}}, {"held_out": {"valid": None}},
    {"corpora": [3]}, {"test": {"x": {"bleu": {"value": 10**400}}}},
    {"test": {"x": {"bleu": {"value": 1, "signature": 2}}}}], ids=str)
def test_metadata_of_an_unexpected_kind_are_not_shown(fields, tmp_path, capsys):
    card = (save(tmp_path / "bundle", **fields) / "README.md").read_text(encoding="utf-8")
    assert "shows no scores and counts" in " ".join(capsys.readouterr().err.split())
    assert "- type: transformer" in card and "checkpoint" not in card


def test_the_best_model_of_a_run_is_published_with_its_scores_and_a_card(tmp_path):
    best = save(tmp_path / "run" / "bundles" / "one", card=None, **METADATA)
    (tmp_path / "run" / "best").write_text("one")
    published = tmp_path / "published"
    assert main(["export", str(tmp_path / "run"), "--to", "seq2seq", "--output", str(published)]) == 0
    before, after = load_bundle(best), load_bundle(published)
    assert before.metadata == after.metadata and before.recipe_text == after.recipe_text
    assert (best / "model.safetensors").read_bytes() == (published / "model.safetensors").read_bytes()
    assert "31.42" in (published / "README.md").read_text(encoding="utf-8") and not (best / "README.md").exists()
    assert main(["export", str(best), "--to", "seq2seq", "--output", str(published)]) == 2


# Licences in a recipe


def test_licences_and_addresses_do_not_change_a_run():
    described = recipe(f"license: mit\n{RECIPE}", **{"{source: valid.de": "{license: MIT, source: valid.de"})
    plain = recipe(**{", license: CC BY 2.0 FR, url: https://a.org/b": ""})
    changes = differences(plain, described)
    assert {change.key for change in changes} == {"license", "data.train.0.license", "data.train.0.url",
                                                  "data.valid.license"}
    assert all(change.may_change_on_resume for change in changes)


@pytest.mark.parametrize("url", ["ftp://a.org", "https://user:secret@a.org", "a.org", "https://a b"])
def test_an_address_that_is_not_a_web_page_is_an_error(url):
    from seq2seq.errors import RecipeError

    with pytest.raises(RecipeError, match="url"):
        recipe(**{"https://a.org/b": json.dumps(url)})
