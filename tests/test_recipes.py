"""The recipes in the repository: they can be loaded, their scripts prepare the data, and the paper's model has its
size."""

import importlib.util
import json
import threading
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from ruamel.yaml import YAML

from seq2seq.data.batching import EncodedCorpus, EncodedSide, gather
from seq2seq.model import build_model
from seq2seq.model.loss import smoothed_cross_entropy
from seq2seq.recipe import load_recipe
from seq2seq.tokenizers.tokenizer import END_ID
from seq2seq.training.run import start_training

ROOT = Path(__file__).parents[1]
RECIPES = sorted((ROOT / "recipes").glob("*/*.yaml"))
BASE = ROOT / "recipes" / "wmt14_en_de" / "base.yaml"
every_recipe = pytest.mark.parametrize("path", RECIPES, ids=lambda path: f"{path.parent.name}/{path.stem}")


def script(task, file="prepare.py"):
    """Import recipes/TASK/FILE as a module."""
    spec = importlib.util.spec_from_file_location(f"script_of_{task}", ROOT / "recipes" / task / file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(module, monkeypatch, *arguments):
    """Run a script as from the command line, and return its exit code."""
    monkeypatch.setattr("sys.argv", ["prepare.py", *map(str, arguments)])
    return module.main()


def read(directory, name, *languages):
    """Read the pairs of a split."""
    columns = [(directory / f"{name}.{language}").read_text(encoding="utf-8").split("\n") for language in languages]
    assert all(column.pop() == "" for column in columns), "the last line is closed"
    return list(zip(*columns, strict=True))


# Recipes


@every_recipe
def test_every_recipe_is_valid_and_has_a_results_page(path):
    recipe = load_recipe(path, check_files=False)
    text = path.read_text(encoding="utf-8")
    written = YAML(typ="safe").load(text)
    assert text.startswith("# "), "the first line says what it is"
    assert written.keys() >= {"name", "languages", "data", "training", "decoding"}
    assert written.keys() >= {"tokenizer", "model"} or "start_from" in written["training"], "or else taken over"
    assert recipe.data.test, "a model without a test set has no result"
    assert recipe.languages.source != recipe.languages.target


@every_recipe
def test_a_recipe_builds_on_a_size_in_configs(path):
    written = YAML(typ="safe").load(path.read_text(encoding="utf-8"))
    if "start_from" in written["training"]:                                     # the size is that of another recipe
        return
    model = written["model"]
    if model.get("type") == "pointer":                                          # there is no second one to share with
        return
    base = model["base"]
    assert (path.parent / base).resolve().parent == ROOT / "configs"
    assert (path.parent / base).is_file()


def test_the_results_page_has_the_scores_of_the_recipes_pages_and_of_their_runs(monkeypatch, tmp_path, capsys):
    check = script("", "check_results.py")
    assert check.main([]) == 0
    assert len([scores for _, scores, _ in check.rows() if scores]) > 15
    page = tmp_path / "results.md"
    page.write_text(check.RESULTS.read_text(encoding="utf-8").replace("96.99", "98.99"), encoding="utf-8")
    monkeypatch.setattr(check, "RESULTS", page)
    assert check.main([]) == 1 and "98.99 of phrasebook" in capsys.readouterr().out


@pytest.mark.parametrize("change, score, fault", [
    ("", 42.0, ""), ("", 12.0, "is 12.00"), ("dropout: 0.3", 42.0, "dropout")])
def test_a_run_is_compared_with_the_recipe_and_the_score_that_the_repository_promises(monkeypatch, change, score,
                                                                                      fault):
    check = script("", "check_results.py")
    recipe = load_recipe(ROOT / "recipes/multi30k/de_en.yaml", ["model.dropout=0.2"] if change else [],
                         check_files=False)
    monkeypatch.setattr(check, "resolve_model_path", lambda run: run)
    monkeypatch.setattr(check, "stored_recipe", lambda bundle: recipe)
    metadata = {"test": {"test_2016_flickr": {"bleu": {"value": score}}}}
    monkeypatch.setattr(check, "read_metadata", lambda *arguments, **options: metadata)
    faults = list(check.faults_of_run(Path("run")))
    assert bool(faults) == bool(fault) and all(fault in one for one in faults)


# The base model of Vaswani et al. 2017


def parameters(model):
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.slow
def test_the_wmt14_recipe_has_the_papers_number_of_parameters():
    recipe = load_recipe(BASE, check_files=False)
    with torch.device("meta"):
        model = build_model(recipe.model, recipe.tokenizer.vocab_size, recipe.tokenizer.vocab_size)
    # Vaswani et al. 2017, table 3: 65 million, in which TensorFlow's vocabulary was somewhat larger than 37,000.
    # 37,000 x 512 + 6 x 3,152,384 (an encoder layer) + 6 x 4,204,032 (a decoder layer), with all biases.
    assert parameters(model) == 63_082_496


@pytest.fixture
def base_recipe(tmp_path):
    """The WMT14 recipe with a few numerals as data, and with steps small enough for one thread."""
    ones = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
    einer = ["eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun"]
    pairs = [(f"{ones[i]} and {ones[j]}", f"{einer[i]} und {einer[j]}") for i in range(9) for j in range(9)]
    for side, language in enumerate(("en", "de")):
        (tmp_path / f"text.{language}").write_text("".join(pair[side] + "\n" for pair in pairs), encoding="utf-8")
    files = f"{{source: {tmp_path}/text.en, target: {tmp_path}/text.de}}"
    return load_recipe(BASE, [
        f"data.train=[{files}]", f"data.valid={files}", f"data.test={{numerals: {files}}}", "expected={}",
        "tokenizer.vocab_size=300", "training.batch_tokens=256", "training.accumulation=2", "training.precision=fp32",
        # Adam's first step moves every weight by the whole rate, and there is no warm-up here.
        "training.learning_rate=0.0003", "training.warmup_steps=1", "training.threads=1",
    ])


@pytest.mark.slow
def test_the_base_model_learns_and_translates_on_a_cpu(base_recipe, tmp_path):
    training = start_training(base_recipe, tmp_path / "run")
    (section,) = {type(layer).__name__ for layer in training.step.model.encoder}
    assert (section, len(training.step.model.encoder), training.step.model.d_model) == ("EncoderLayer", 6, 512)
    losses, steps = [], training.batches()
    for _ in range(2):
        training.update(*next(steps))
        window = training.state.window
        losses.append(window.pop("loss") / window.pop("target_tokens"))
        assert window.pop("gradient_norm") > 0
    assert losses[1] < losses[0], "the second step has learnt from the first"
    training.step.model.eval()
    (best, *_), _ = training.translator().translate(["one and two", "nine and nine"], beam_size=2, max_length_offset=5)
    assert best.tokens > 0 and np.isfinite(best.log_probability)


@pytest.mark.slow
def test_the_base_model_with_a_vocabulary_of_32000_has_a_gradient_everywhere(base_recipe):
    torch.manual_seed(3)
    model = build_model(base_recipe.model, 32_000, 32_000)
    # The size of the paper's model with this vocabulary: 32,000 x 512 in place of 37,000 x 512.
    assert parameters(model) == 60_522_496
    random = np.random.default_rng(5)
    sides = [EncodedSide.from_lists([random.integers(END_ID + 1, 32_000, length).tolist() for length in lengths])
             for lengths in ((7, 2, 5), (3, 11, 1))]
    batch = gather(EncodedCorpus(*sides), np.arange(3))
    loss = smoothed_cross_entropy(model(batch), batch.target_output, batch.target_count, 0.1)
    # Fresh logits are small: the model knows no more than that there are 32,000 pieces.
    assert loss.total.item() / loss.tokens == pytest.approx(np.log(32_000), rel=0.1)
    loss.total.backward()
    for name, parameter in model.named_parameters():
        assert torch.isfinite(parameter.grad).all(), name
        assert parameter.grad.abs().sum() > 0 or name.endswith("key_value.bias"), name


# Multi30k

PAIRS = {"train": [("Ein Hund läuft.", "A dog runs."), ("Zwei Katzen.", "Two cats."), ("Ein Mann.", "A man.")],
         "validation": [("Eine Frau\nsingt.", "A woman sings.")], "test": [("Kinder.", "Children."), ("Ja.", "Yes.")]}


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """Directory in the layout of the data set on the hub."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()
    directory = tmp_path / "hub"
    directory.mkdir()
    for split, pairs in PAIRS.items():
        lines = [json.dumps({"en": english, "de": german}) + "\n" for german, english in pairs]
        (directory / f"{split}.jsonl").write_text("".join(lines), encoding="utf-8")
    yield directory
    datasets.enable_progress_bars()


def test_multi30k_is_written_where_its_recipes_look_for_it(hub, tmp_path, monkeypatch, capsys):
    output = tmp_path / "data"
    assert run(script("multi30k"), monkeypatch, "--hub", hub, "--output", output) == 0
    assert read(output, "train", "de", "en") == PAIRS["train"]
    assert read(output, "val", "de", "en") == [("Eine Frau singt.", "A woman sings.")]
    assert read(output, "test_2016_flickr", "de", "en") == PAIRS["test"]
    assert "train.{de,en}: 3 lines" in capsys.readouterr().out
    for path in (ROOT / "recipes" / "multi30k").glob("*.yaml"):
        load_recipe(path, [f"data.root={output}"], check_files=True)


def test_variants_of_multi30k_are_compared_on_validation_text(tmp_path, monkeypatch, capsys):
    module, recipes, lock = script("multi30k", "compare.py"), {}, threading.Lock()

    def train(command, **_):
        path, run = command[command.index("train") + 1], command[command.index("--run-dir") + 1]
        settings = [value for option, value in zip(command, command[1:], strict=False) if option == "--set"]
        with lock:                                      # ast.parse fails in several threads of some Python 3.11
            recipe = recipes[run.name] = load_recipe(path, settings, check_files=False)
        run.mkdir()
        (run / "metrics.jsonl").write_text("".join(json.dumps({"kind": kind, "bleu": bleu}) + "\n" for kind, bleu in (
            ("validation", 40.0 + recipe.seed), ("validation", 7.0), ("other", 99.0))))
        return SimpleNamespace(returncode=int("dropout" in run.name))

    monkeypatch.setattr(module, "RUNS", tmp_path)
    monkeypatch.setattr(module.subprocess, "run", train)
    assert run(module, monkeypatch, "en_de_best", "--seeds", 1, 3, "--at-once", 2) == 1
    printed = capsys.readouterr()
    assert "| 12,000 pieces, SimCut | 41.00 | 43.00 | 42.00 |" in printed.out
    assert "| 12,000 pieces, dropout 0.3, 60 % of 11,200 steps | nan | nan | nan |" in printed.out
    assert printed.err.count("failed") == 2
    assert recipes["12_000_pieces_SimCut_3"].training.consistency_cutoff == 0.05


@pytest.mark.slow
def test_multi30k_is_tokenised_and_scored_as_moses_does(hub, tmp_path, monkeypatch, capsys):
    pytest.importorskip("sacremoses")
    data, script_of = tmp_path / "data", script("multi30k", "tokenised.py")
    assert run(script("multi30k"), monkeypatch, "--hub", hub, "--output", data) == 0
    capsys.readouterr()
    (data / "val.de").write_text("Die „Frau“ trägt Nr. 5 & singt.\n", encoding="utf-8")
    (data / "train.en").write_text("a man's dog runs.\nb\nc\n")
    assert run(script_of, monkeypatch, "prepare", "--data", data) == 0
    moses = 'die " frau " trägt nr. 5 & singt .\n'
    assert (data / "tokenised" / "val.de").read_text(encoding="utf-8") == moses
    assert (data / "tokenised" / "train.en").read_text() == "a man 's dog runs .\nb\nc\n"
    load_recipe(ROOT / "recipes" / "multi30k" / "en_de_published.yaml", [f"data.root={data / 'tokenised'}"],
                check_files=True)
    words = data / "tokenised" / "val.de"
    for arguments in ((data / "val.de", data / "val.de"), ("--as-is", words, words)):
        assert run(script_of, monkeypatch, "score", *arguments) == 0
        assert capsys.readouterr().out.startswith("100.00  nrefs:1|case:mixed|eff:no|tok:none")
    words.rename(data / "reference.txt")
    assert run(script_of, monkeypatch, "score", data / "val.de", data / "reference.txt") == 2
    assert "must end in its language" in capsys.readouterr().err
    assert run(script_of, monkeypatch, "score", data / "val.de", data / "train.de") == 2
    assert "has 1 lines" in capsys.readouterr().err


# Tatoeba

tatoeba = script("tatoeba_zh_en")


@pytest.fixture
def anki(tmp_path):
    """File in the format of manythings.org with 300 sentences; many have several translations, and some are
    duplicates."""
    random = np.random.default_rng(7)
    lines = [f"English {number % 211}.\t中文{random.integers(173)}。\tCC-BY 2.0 (France)\n" for number in range(300)]
    path = tmp_path / "cmn.txt"
    path.write_text("".join([*lines, *lines[:13]]), encoding="utf-8")
    return path


def test_no_tatoeba_sentence_of_either_language_stands_in_two_splits(anki, tmp_path, monkeypatch, capsys):
    output = tmp_path / "data"
    assert run(tatoeba, monkeypatch, anki, "--valid", 11, "--test", 17, "--output", output) == 0
    splits = {name: read(output, name, "en", "zh") for name in ("train", "valid", "test")}
    assert (len(splits["valid"]), len(splits["test"])) == (11, 17)
    for one, other in combinations(splits.values(), 2):
        for side in (0, 1):
            assert not {pair[side] for pair in one} & {pair[side] for pair in other}
    pairs = [tuple(line.split("\t")[:2]) for line in anki.read_text(encoding="utf-8").splitlines()]
    assert sorted(pair for split in splits.values() for pair in split) == sorted(set(pairs))
    assert f"{len(set(pairs))} different pairs, {len(pairs) - len(set(pairs))} duplicates" in capsys.readouterr().out
    load_recipe(ROOT / "recipes" / "tatoeba_zh_en" / "zh_en.yaml", [f"data.root={output}"], check_files=True)


def test_tatoeba_of_another_language_is_split_for_fine_tuning(anki, tmp_path, monkeypatch):
    output = tmp_path / "data" / "tatoeba_en_de"
    assert run(tatoeba, monkeypatch, anki, "--language", "de", "--valid", 11, "--test", 17, "--output", output) == 0
    recipe = load_recipe(ROOT / "recipes" / "finetuning" / "everyday.yaml", [f"data.root={output.parent}"],
                         check_files=False)
    used = [path for corpus in (*recipe.data.train, *recipe.data.valid, recipe.data.test["everyday"])
            for path in corpus.resolve(recipe.data_directory).paths]
    assert used and all(path.exists() for path in used)


def test_no_tested_sentence_is_in_the_training_text_of_three_languages(tmp_path, monkeypatch):
    draw = np.random.default_rng(5)
    for language in ("de", "zh"):
        (tmp_path / language).mkdir()
        for split, begin, count in (("train", 0, 47), ("valid", 41, 7), ("test", 40, 11)):
            english = [f"English {begin + number}." for number in range(count)]
            for code, lines in (("en", english), (language, [f"{language} {draw.integers(97)}." for _ in english])):
                (tmp_path / language / f"{split}.{code}").write_text("".join(f"{line}\n" for line in lines))
    module = script("several_languages")
    monkeypatch.setattr(module, "TRAIN_PAIRS", 23)
    run(module, monkeypatch, tmp_path / "de", tmp_path / "zh", "--output", tmp_path / "data")
    texts = {path.name.partition(".")[0]: set() for path in (tmp_path / "data").iterdir()}
    for path in (tmp_path / "data").iterdir():
        texts[path.name.partition(".")[0]] |= set(path.read_text().splitlines())
    assert texts["train"] and not texts["train"] & (texts["valid"] | texts["test"])
    assert len(read(tmp_path / "data", "test.de_zh", "de", "zh")) == 11
    for name in ("en_de_zh", "single"):
        load_recipe(ROOT / "recipes" / "several_languages" / f"{name}.yaml", [f"data.root={tmp_path / 'data'}"])


def test_pairs_connected_through_other_pairs_form_one_group():
    pairs = [("a", "甲"), ("b", "乙"), ("c", "丙"), ("b", "甲"), ("d", "丙"), ("e", "戊"), ("甲", "e")]
    assert sorted(sorted(group) for group in tatoeba.connected(pairs)) == [
        [("a", "甲"), ("b", "乙"), ("b", "甲")], [("c", "丙"), ("d", "丙")], [("e", "戊")], [("甲", "e")]]


@pytest.mark.parametrize(("text", "message"), [
    ("Hi.\t嗨。\tx\nHello\n", r"cmn.txt:2: expected English, a tab and a translation, found 'Hello'"),
    ("Hi.\t \tx\n", r"cmn.txt:1: expected English"),
    ("Hi.\t嗨。\tx\nRun!\t跑！\tx\nBye.\t再见。\tx\n", r"test gets only 2 of 3"),
    ("Hi.\t嗨。\tx\nHello.\t嗨。\tx\nRun!\t跑！\tx\nBye.\t再见。\tx\nNo.\t不。\tx\n", None),
    ("", r"valid gets only 0 of 1"),
])
def test_a_tatoeba_file_that_cannot_be_split_is_refused(tmp_path, monkeypatch, capsys, text, message):
    (tmp_path / "cmn.txt").write_text(text, encoding="utf-8")
    output = tmp_path / "data"
    arguments = (tmp_path / "cmn.txt", "--valid", 1, "--test", 3 if message else 2, "--output", output)
    assert run(tatoeba, monkeypatch, *arguments) == (2 if message else 0)
    assert output.exists() == (message is None)
    if message:
        assert message in capsys.readouterr().err
