"""Generation with a language model, and rescoring with one. The models have random weights from fixed seeds."""

import dataclasses
import io
import json
import math
import sys
from pathlib import Path

import pytest
from random_models import ENGLISH, GERMAN, recipe_text, save_random_model, trained_tokenizers

from seq2seq.cli import main
from seq2seq.errors import CheckpointError, CorpusError, OptionError, UserError
from seq2seq.evaluation.rescoring import rescore
from seq2seq.translation.generation import generate
from seq2seq.translation.scoring import pair_scores
from seq2seq.translation.translation import Translation
from seq2seq.translation.translator import Translator

TRANSLATES = recipe_text(
    283, "d_model: 12, encoder_layers: 1, decoder_layers: 1, num_heads: 2, feed_forward: 7, max_positions: 31",
    "beam_size: 5, length_penalty: 0.7, max_length_ratio: 1.0, max_length_offset: 3, safety_net: false")
SPEAKS = """\
name: speaks
languages: {target: en}
data:
  train: [{text: train.en}]
  valid: {text: test.en}
  cleaning: {max_pieces: 29}
tokenizer: {vocab_size: 276}
model: {type: language_model, d_model: 12, decoder_layers: 1, num_heads: 2, feed_forward: 7, max_positions: 31}
training: {best_metric: loss}
"""
PROMPTS = ["the", "", "a cat", "  the dog ", "zwölf"]


@pytest.fixture(scope="module")
def bundles(tmp_path_factory) -> dict[str, Path]:
    """A translation model and a language model with different vocabularies."""
    directory = tmp_path_factory.mktemp("models")
    tokenizers = {TRANSLATES: trained_tokenizers(TRANSLATES),
                  SPEAKS: trained_tokenizers(SPEAKS, [("", line) for line in ENGLISH])}
    return {name: save_random_model(directory / name, text, tokenizers[text], seed=7, noise=0.3)
            for name, text in (("translates", TRANSLATES), ("speaks", SPEAKS))}


@pytest.fixture(scope="module")
def models(bundles) -> dict[str, Translator]:
    return {name: Translator.load(path, device="cpu", precision="fp32") for name, path in bundles.items()}


@pytest.fixture
def speaker(models) -> Translator:
    return models["speaks"]


def texts(speaker, prompts=PROMPTS, **options):
    return [[text.text for text in each] for each in generate(speaker, prompts, **options)]


# Drawing


def test_every_text_begins_with_its_prompt_and_is_no_longer_than_allowed(speaker):
    found = list(generate(speaker, PROMPTS, samples=3, max_length=11, sampling=True))
    assert [len(each) for each in found] == [3] * len(PROMPTS)
    for prompt, each in zip(PROMPTS, found, strict=True):
        for text in each:
            assert text.text.startswith(prompt.strip()) and "\n" not in text.text
            assert text.prompt_tokens == len(speaker.tokenizers.target.encode([prompt.strip()])[0])
            assert text.prompt_tokens < text.tokens <= max(text.prompt_tokens, 11) + 1
            assert text.log_probability < 0


def test_seed_and_numbers_decide_a_text_and_the_batch_does_not(speaker):
    drawing = {"sampling": True, "seed": 3, "temperature": 1.3, "top_k": 100, "top_p": 0.95}
    together = texts(speaker, samples=3, max_length=9, **drawing)
    assert together == texts(speaker, samples=3, max_length=9, **drawing, block_prompts=2)
    alone = dataclasses.replace(speaker, decoding=speaker.decoding.model_copy(update={"batch_tokens": 1}))
    assert together == texts(alone, samples=3, max_length=9, **drawing)
    assert together != texts(speaker, samples=3, max_length=9, **(drawing | {"seed": 4}))
    assert [each[:2] for each in together] == texts(speaker, samples=2, max_length=9, **drawing)
    assert all(len(set(each)) > 1 for each in together)
    twice = texts(speaker, ["a dog", "a dog"], max_length=9, **drawing)
    assert twice[0] != twice[1], "two lines alike are two draws"


@pytest.mark.parametrize("narrowed", [{"temperature": 1e-4}, {"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}], ids=str)
def test_what_is_narrowed_to_one_piece_is_a_search_without_a_beam(speaker, narrowed):
    assert texts(speaker, sampling=True, **narrowed) == texts(speaker, beam_size=1)


def test_a_search_gives_its_best_texts(speaker):
    (found,) = generate(speaker, ["the"], max_length=9, beam_size=4, n_best=3, length_penalty=0.0)
    (greedy,), = generate(speaker, ["the"], max_length=9, beam_size=1)
    assert len(found) == 3
    assert found == sorted(found, key=lambda text: -text.log_probability) and found[0].tokens <= 10
    assert found[0].log_probability >= greedy.log_probability


def test_words_come_with_the_confidence_in_them(speaker):
    ((text,),) = generate(speaker, ["the cat"], sampling=True, word_confidence=True, max_length=9)
    assert [word.text for word in text.words][:2] == ["the", "cat"] or text.text.split()[0] == text.words[0].text
    assert all(0 <= word.confidence <= 1 for word in text.words)


def test_a_prompt_without_room_for_more_and_a_model_that_translates_are_refused(models):
    with pytest.raises(UserError, match="^prompt 2 "):
        list(generate(models["speaks"], ["a", "x" * 30]))
    with pytest.raises(UserError):
        list(generate(models["translates"], [""]))


def test_what_helps_to_translate_is_a_language_model_of_the_same_vocabulary(bundles):
    for helper, error in (("translates", UserError), ("speaks", CheckpointError)):
        with pytest.raises(error):
            Translator.load(bundles["translates"], fusion=bundles[helper])


@pytest.mark.parametrize("options", [
    {"beam_sise": 3}, {"top_p": 2.0, "sampling": True}, {"samples": 0}, {"block_prompts": 0}, {"max_length": 0},
    {"samples": 2}], ids=str)
def test_options_of_generation_are_checked_at_once(speaker, options):
    with pytest.raises(OptionError):
        generate(speaker, ["the"], **options)


# Choosing anew


def found_by(models) -> list[list[Translation]]:
    return models["translates"].translate([*GERMAN, "  "], n_best=4)


def test_rescoring_adds_what_a_direct_computation_gives(models):
    found = found_by(models)
    chosen = rescore([*GERMAN, "  "], found, [(models["speaks"], 0.3), (models["translates"], 0.5)], 0.7)
    for source, before, after in zip(GERMAN, found, chosen, strict=False):
        expected = {}
        for way in before:
            (speaks,) = pair_scores(models["speaks"], [("", way.text)])
            (translates,) = pair_scores(models["translates"], [(source, way.text)])
            total = way.log_probability + 0.3 * speaks.log_probability + 0.5 * translates.log_probability
            expected[way.text] = total / way.tokens**0.7
        assert {one.translation.text: one.translation.score for one in after} == pytest.approx(expected, abs=1e-4)
        scores = [one.translation.score for one in after]
        assert scores == sorted(scores, reverse=True)
    assert [one.translation for one in chosen[-1]] == found[-1] and chosen[-1][0].log_probabilities == ()


def test_weights_of_zero_change_nothing(models):
    found = found_by(models)
    chosen = rescore([*GERMAN, "  "], found, [(models["speaks"], 0.0)], length_penalty=0.7)
    for after, before in zip(chosen, found, strict=True):
        assert [one.translation.text for one in after] == [way.text for way in before]
        assert [one.translation.score for one in after] == pytest.approx([way.score for way in before])


def test_a_large_weight_leaves_the_choice_to_the_language_model(models):
    found = found_by(models)
    chosen = rescore([*GERMAN, "  "], found, [(models["speaks"], 1e6)])
    for before, after in zip(found[:-1], chosen, strict=False):
        scored = pair_scores(models["speaks"], [("", way.text) for way in before])
        best = max(zip(before, scored, strict=True), key=lambda both: both[1].log_probability / both[0].tokens)
        assert after[0].translation.text == best[0].text


def test_a_translation_that_a_model_has_no_room_for_is_shown(models):
    long = [Translation("x" * 40, -1.0, -1.0, 41), Translation("y", -2.0, -2.0, 2)]
    with pytest.raises(CorpusError, match="'xxx"):
        rescore(["ein"], [long], [(models["speaks"], 1.0)])


def test_what_cannot_be_rescored_is_told(models):
    found = [[Translation("x", -1.0, -1.0, 2), Translation("y", -2.0, -2.0, 2)]]
    with pytest.raises(CorpusError):
        rescore(["a", "b"], found, [(models["speaks"], 1.0)])
    with pytest.raises(OptionError, match="^length_penalty: "):
        rescore(["a"], found, [(models["speaks"], 1.0)], -1.0)
    for weight in (math.nan, math.inf):
        with pytest.raises(UserError):
            rescore(["a"], found, [(models["speaks"], 1.0), (models["speaks"], weight)])


# The command line


@pytest.fixture
def run(tmp_path, monkeypatch, capsysbinary):
    """Function that runs a command in this process and returns exit code, standard output and standard error."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object, stdin: str = "") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        capsysbinary.readouterr()
        code = main([str(argument) for argument in arguments])
        out, err = capsysbinary.readouterr()
        return code, out.decode(), err.decode()

    return run


def test_beginnings_come_from_options_a_file_or_standard_input(run, bundles, speaker, tmp_path):
    options = "--samples", 2, "--max-length", "5", "--seed", 3, "--precision", "fp32"
    expected = texts(speaker, ["the", "a cat"], samples=2, max_length=5, sampling=True, seed=3)
    wanted = (0, "".join(f"{text}\n" for each in expected for text in each))
    (tmp_path / "beginnings").write_text("the\na cat\n")
    assert run("generate", bundles["speaks"], "--prompt", "the", "--prompt", "a cat", *options)[:2] == wanted
    assert run("generate", bundles["speaks"], "beginnings", *options)[:2] == wanted
    assert run("generate", bundles["speaks"], "-", *options, stdin="the\na cat\n")[:2] == wanted
    alone = run("generate", bundles["speaks"], "--max-length", "5")
    assert alone[:2] == (0, texts(speaker, [""], max_length=5, sampling=True)[0][0] + "\n")


def test_generated_jsonl_says_what_was_asked_and_what_came(run, bundles, speaker):
    _, out, _ = run("generate", bundles["speaks"], "--prompt", " the", "--samples", 3, "--format", "jsonl",
                    "--temperature", 0.7, "--top-p", 0.9, "--precision", "fp32", "--max-length", "5",
                    "--top-k", "50", "--min-p", "0.01")
    drawing = {"temperature": 0.7, "top_k": 50, "top_p": 0.9, "min_p": 0.01}
    expected = next(generate(speaker, [" the"], 3, max_length=5, sampling=True, **drawing))
    assert [json.loads(line) for line in out.splitlines()] == [
        {"line": 1, "sample": number, "prompt": " the", "text": text.text,
         "log_probability": pytest.approx(text.log_probability), "tokens": text.tokens,
         "prompt_tokens": text.prompt_tokens}
        for number, text in enumerate(expected, start=1)]


@pytest.mark.parametrize("arguments", [
    ("--greedy", "--samples", 2), ("--greedy", "--top-p", 0.9), ("--top-k", -1),
    ("-", "--prompt", "a"), ("--top-p", 1.5),
    ("--temperature", 0), ("nowhere.en",), ("--prompt", "x" * 30)], ids=str)
def test_what_cannot_be_generated_is_refused(run, bundles, arguments):
    assert run("generate", bundles["speaks"], *arguments)[:2] == (2, "")
    assert run("generate", bundles["translates"])[:2] == (2, "")


def test_rescored_lines_keep_nothing_that_describes_the_old_best_translation(run, bundles):
    entries = [{"translation": text, "score": -1.0, "log_probability": -1.0, "tokens": 5} for text in ("the", "a cat")]
    record = {"line": 1, "source": "ein", **entries[0], "parts": 1, "faults": ["repetition"], "retried": True,
              "lost_terms": ["cat"], "words": [{"word": "the", "confidence": 0.5}], "n_best": entries}
    _, out, _ = run("rescore", "--model", bundles["speaks"], "--weight", 1, "--format", "jsonl",
                    stdin=json.dumps(record) + "\n")
    found = json.loads(out)
    assert found.keys() == record.keys() - {"faults", "retried", "lost_terms", "words"}
    assert found["translation"] == found["n_best"][0]["translation"] and (found["line"], found["parts"]) == (1, 1)


def test_a_translation_with_faults_stays_behind_one_without(run, bundles):
    entries = [{"translation": text, "score": score, "log_probability": score, "tokens": 1, "faults": faults}
               for text, score, faults in (("the", -2.0, []), ("the the", -1.0, ["loop"]))]
    record = {"line": 1, "source": "ein", **entries[0], "parts": 1, "retried": True, "n_best": entries}
    options = ("rescore", "--model", bundles["speaks"], "--weight", 0, "--format", "jsonl")
    _, out, _ = run(*options, stdin=json.dumps(record) + "\n")
    found = json.loads(out)
    assert [(each["translation"], each["faults"]) for each in found["n_best"]] == [
        ("the", []), ("the the", ["loop"])]
    assert (found["translation"], found["faults"]) == ("the", [])
    record["n_best"] = [{**entry, "faults": []} for entry in entries]
    _, out, _ = run(*options, stdin=json.dumps(record) + "\n")
    assert json.loads(out)["translation"] == "the the"
    code, _, err = run(*options, stdin=json.dumps({**record, "n_best": [{**entries[0], "faults": "loop"}]}) + "\n")
    assert code == 2 and "standard input:1: expected an object with the keys source and n_best" in err


def test_n_best_lists_are_rescored_line_by_line(run, bundles, models, tmp_path):
    lines = [*GERMAN, "  "]
    (tmp_path / "test.de").write_text("".join(f"{line}\n" for line in lines))
    _, n_best, _ = run("translate", bundles["translates"], "test.de", "--n-best", 4, "--format", "jsonl",
                       "--precision", "fp32")
    chosen = rescore(lines, found_by(models), [(models["speaks"], 2.0), (models["translates"], 1.0)], 0.5)
    options = ("--model", bundles["speaks"], "--weight", 2, "--model", bundles["translates"], "--weight", 1,
               "--length-penalty", 0.5)
    code, out, _ = run("rescore", *options, stdin=n_best)
    assert (code, out.splitlines()) == (0, [best.translation.text for best, *_ in chosen])
    _, out, _ = run("rescore", *options, "--format", "jsonl", stdin=n_best)
    for line, each, source in zip(out.splitlines(), chosen, lines, strict=True):
        record = json.loads(line)
        assert (record["source"], record["translation"]) == (source, each[0].translation.text)
        assert record["score"] == pytest.approx(each[0].translation.score, abs=1e-4)
        assert [way["translation"] for way in record["n_best"]] == [one.translation.text for one in each]
        assert [list(way["log_probabilities"].values()) for way in record["n_best"]] == [
            pytest.approx(one.log_probabilities, abs=1e-4) for one in each]
    again = run("rescore", *options, stdin=out)
    assert again[0] == 0, "what it writes it reads"


@pytest.mark.parametrize("text", [
    "not json", "[1]", '{"source": "a", "translation": "b"}', '{"source": "a", "n_best": []}',
    *(json.dumps({"source": "a", "n_best": [
        {"translation": translation, "score": -1, "log_probability": -1, "tokens": tokens}]})
      for translation, tokens in ((3, 2), ("b\nc", 2), ("b", 0), ("b", math.inf)))])
def test_what_is_no_n_best_list_is_refused_with_its_line(run, bundles, text):
    code, out, err = run("rescore", "--model", bundles["speaks"], "--weight", 1, stdin=f"{text}\n")
    assert (code, out) == (2, "") and "standard input:1: " in err


@pytest.mark.parametrize(("options", "told"), [
    ((), "Missing option '--model'"), (("--model", "m"), "Missing option '--weight'"),
    (("--weight", 1), "Missing option '--model'"),
    (("--model", "m", "--weight", 1, "--weight", 2), "Give one --weight for each --model")])
def test_each_model_has_its_weight(run, options, told):
    code, _, err = run("rescore", *options, stdin="")
    assert code == 2 and told in err
