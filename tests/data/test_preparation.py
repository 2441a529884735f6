import itertools
import os

import numpy as np
import pytest

from seq2seq.check import blocking_problems
from seq2seq.data import preparation
from seq2seq.data.block_processes import BlockProcesses
from seq2seq.data.corpus import Counts, as_lines
from seq2seq.data.preparation import (
    TrainingText,
    blocks,
    cleaned,
    corpus_repetitions,
    id_type,
    kept_pairs,
    sampled_pairs,
)
from seq2seq.data.resampled_epochs import ResampledEpochs
from seq2seq.errors import CorpusError
from seq2seq.recipe import Recipe, TokenizerSection
from seq2seq.tokenizers.tokenizer import END_ID, Tokenizers, train_tokenizers

WORDS = ["Hund", "Katze", "läuft", "schläft", "groß", "klein", "dog", "cat", "runs", "sleeps", "big", "small"]
PAIRS = 53


def of_recipe(function):
    """Return a function of a recipe's text that takes the recipe instead."""
    return lambda recipe, *arguments, **options: function(TrainingText.of(recipe), *arguments, **options)


prepare, train_or_load_tokenizers, load_or_make_tokenizers = map(of_recipe, (
    preparation.prepare, preparation.train_or_load_tokenizers,
    blocking_problems.load_or_make_tokenizers))


def sample_of(recipe, directory):
    """Return the pairs that the recipe's tokenizer is trained on."""
    with BlockProcesses(1) as processes:
        text = TrainingText.of(recipe)
        return list(sampled_pairs(text, kept_pairs(text, (True, True), directory, processes)))


def random_line(random, longest):
    return " ".join(random.choice(WORDS, random.integers(1, longest)))


@pytest.fixture(scope="module")
def tokenizers():
    random = np.random.default_rng(1)
    pairs = [(random_line(random, 7), random_line(random, 11)) for _ in range(211)]
    return train_tokenizers(pairs, TokenizerSection(vocab_size=293), 1)


@pytest.fixture
def recipe(tmp_path):
    random = np.random.default_rng(2)
    for name, count in (("first", PAIRS), ("second", 7)):
        for side, longest in (("source", 7), ("target", 11)):
            lines = [random_line(random, longest) for _ in range(count)]
            (tmp_path / f"{name}.{side}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return recipe_of(tmp_path)


def recipe_of(directory, sampling=0.0, second=(), **cleaning):
    first = {"source": "first.source", "target": "first.target"}
    return Recipe.model_validate({
        "name": "test", "languages": {"source": "de", "target": "en"}, "seed": 3,
        "data": {"train": [first, *second], "valid": first, "cleaning": cleaning},
        "tokenizer": {"vocab_size": 293, "subword_sampling": sampling},
    }).with_directory(directory)


SECOND = {"source": "second.source", "target": "second.target"}


def lines_of(directory, name):
    return (directory / name).read_text(encoding="utf-8").splitlines()


def sentences(side):
    return [side.ids[begin:end].tolist() for begin, end in itertools.pairwise(side.offsets.tolist())]


def written(directory):
    """Return the modification time of each file below a directory."""
    return {path: path.stat().st_mtime_ns for path in directory.rglob("*") if path.is_file()}


# What is written


def test_mapped_ids_equal_what_the_tokenizer_says(recipe, tokenizers, tmp_path):
    prepared = prepare(recipe, tokenizers, tmp_path / "prepared")
    for side, tokenizer, name in ((prepared.corpus.source, tokenizers.source, "first.source"),
                                  (prepared.corpus.target, tokenizers.target, "first.target")):
        assert sentences(side) == [[*ids, END_ID] for ids in tokenizer.encode(lines_of(tmp_path, name))]
        assert isinstance(side.ids, np.memmap) and side.ids.dtype == np.uint16
    assert prepared.corpus.lines.tolist() == list(range(1, PAIRS + 1))
    assert prepared.corpus.weights is None


def test_the_tokenizer_is_trained_on_the_cleaned_text_of_all_corpora(recipe, tmp_path):
    both = recipe_of(tmp_path, second=[SECOND], remove_duplicates=True)
    pairs = [pair for name in ("first", "second")
             for pair in zip(*(lines_of(tmp_path, f"{name}.{side}") for side in ("source", "target")), strict=True)]
    (tmp_path / "second.source").open("a", encoding="utf-8").write("\n")        # a pair with an empty side
    (tmp_path / "second.target").open("a", encoding="utf-8").write("alone\n")
    assert sample_of(both, tmp_path / "kept") == pairs


def test_several_corpora_are_concatenated_with_their_weights(recipe, tokenizers, tmp_path):
    both = recipe_of(tmp_path, second=[SECOND | {"weight": 2.5, "name": "more"}])
    prepared = prepare(both, tokenizers, tmp_path / "prepared")
    assert prepared.corpus.weights.tolist() == [1.0] * PAIRS + [2.5] * 7
    assert prepared.corpus.lines.tolist() == [*range(1, PAIRS + 1), *range(1, 8)]
    assert sentences(prepared.corpus.source)[PAIRS:] == [
        [*ids, END_ID] for ids in tokenizers.source.encode(lines_of(tmp_path, "second.source"))]
    assert {name: counts["kept"] for name, counts in prepared.counts.items()} == {"first.source": PAIRS, "more": 7}


def test_another_weight_needs_no_new_arrays(recipe, tokenizers, tmp_path):
    parent = tmp_path / "prepared"
    prepare(recipe_of(tmp_path, second=[SECOND | {"weight": 2.0}]), tokenizers, parent)
    before = written(parent)
    prepared = prepare(recipe_of(tmp_path, second=[SECOND | {"weight": 0.5}]), tokenizers, parent)
    assert written(parent) == before
    assert prepared.corpus.weights.tolist() == [1.0] * PAIRS + [0.5] * 7


def test_a_corpus_named_twice_is_counted_twice(recipe, tokenizers, tmp_path):
    twice = recipe_of(tmp_path, second=[{"source": "first.source", "target": "first.target"}])
    prepared = prepare(twice, tokenizers, tmp_path / "prepared")
    assert [counts["kept"] for counts in prepared.counts.values()] == [PAIRS, PAIRS]


def test_pairs_of_too_many_pieces_are_left_out_and_counted(recipe, tokenizers, tmp_path):
    lengths = [
        max(len(source), len(target)) for source, target in
        zip(*(tokenizer.encode(lines_of(tmp_path, name)) for tokenizer, name in
              ((tokenizers.source, "first.source"), (tokenizers.target, "first.target"))), strict=True)
    ]
    longest = sorted(lengths)[PAIRS // 2]
    kept = [line for line, length in enumerate(lengths, start=1) if length <= longest]
    prepared = prepare(recipe_of(tmp_path, max_pieces=longest), tokenizers, tmp_path / "prepared")
    assert 0 < len(kept) < PAIRS
    assert prepared.corpus.lines.tolist() == kept
    assert len(prepared.corpus) == len(kept)
    assert max(prepared.corpus.source.lengths.max(), prepared.corpus.target.lengths.max()) == longest + 1
    (counts,) = prepared.counts.values()
    assert (counts["kept"], counts["dropped"]) == (len(kept), {"too_many_pieces": PAIRS - len(kept)})
    assert counts["examples"]["too_many_pieces"] == next(line for line in range(1, PAIRS) if line not in kept)


def test_a_corpus_of_which_nothing_is_left_is_an_error(recipe, tokenizers, tmp_path):
    with pytest.raises(CorpusError, match="too_many_pieces"):
        prepare(recipe_of(tmp_path, max_pieces=1), tokenizers, tmp_path / "prepared")


def test_ids_take_two_bytes_where_these_can_hold_them():
    assert id_type(2**16) is np.uint16 and np.iinfo(id_type(2**16)).max >= 2**16 - 1
    assert id_type(2**16 + 1) is np.uint32


def test_blocks_contain_everything_in_order():
    assert list(blocks(range(7), 3)) == [[0, 1, 2], [3, 4, 5], [6]]
    assert list(blocks([], 3)) == []


# What is used again


def test_unchanged_text_is_not_prepared_again(recipe, tokenizers, tmp_path):
    parent = tmp_path / "prepared"
    first = prepare(recipe, tokenizers, parent)
    before = written(parent)
    again = prepare(recipe_of(tmp_path), tokenizers, parent, processes=2)
    assert written(parent) == before and len(before) == 7
    assert (again.fingerprint, again.counts, again.directory) == (first.fingerprint, first.counts, first.directory)
    assert sentences(again.corpus.source) == sentences(first.corpus.source)


def test_changed_text_is_prepared_anew(recipe, tokenizers, tmp_path):
    first = prepare(recipe, tokenizers, tmp_path / "prepared")
    path = tmp_path / "first.target"
    path.write_text(path.read_text(encoding="utf-8").replace("dog", "cat"), encoding="utf-8")
    second = prepare(recipe, tokenizers, tmp_path / "prepared")
    assert second.directory != first.directory and second.fingerprint != first.fingerprint
    assert sentences(second.corpus.target) == [
        [*ids, END_ID] for ids in tokenizers.target.encode(lines_of(tmp_path, "first.target"))]


def test_text_that_was_only_touched_gives_the_same_fingerprint(recipe, tokenizers, tmp_path):
    first = prepare(recipe, tokenizers, tmp_path / "prepared")
    os.utime(tmp_path / "first.source", ns=(1, 1))
    assert prepare(recipe, tokenizers, tmp_path / "prepared").fingerprint == first.fingerprint


def test_another_tokenizer_or_other_limits_are_prepared_anew(recipe, tokenizers, tmp_path):
    directories = {prepare(recipe, tokenizers, tmp_path / "prepared").directory}
    section = recipe.tokenizer.model_copy(update={"vocab_size": 287})
    lines = [lines_of(tmp_path, f"first.{side}") for side in ("source", "target")]
    others = train_tokenizers(zip(*lines, strict=True), section, 1)
    assert others.source.fingerprint != tokenizers.source.fingerprint
    directories.add(prepare(recipe, others, tmp_path / "prepared").directory)
    directories.add(prepare(recipe_of(tmp_path, max_pieces=5), tokenizers, tmp_path / "prepared").directory)
    directories.add(prepare(recipe_of(tmp_path, sampling=0.5), tokenizers, tmp_path / "prepared").directory)
    assert len(directories) == 4


def test_a_preparation_that_was_cut_off_is_done_again(recipe, tokenizers, tmp_path, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("os.rename", stop)
        with pytest.raises(KeyboardInterrupt):
            prepare(recipe, tokenizers, tmp_path / "prepared")
    assert len(prepare(recipe, tokenizers, tmp_path / "prepared").corpus) == PAIRS


def test_tokenizers_are_trained_once(recipe, tmp_path):
    first = train_or_load_tokenizers(recipe, tmp_path / "tokenizers")
    before = written(tmp_path / "tokenizers")
    again = train_or_load_tokenizers(recipe, tmp_path / "tokenizers")
    assert written(tmp_path / "tokenizers") == before
    assert again.source.fingerprint == first.source.fingerprint == first.target.fingerprint
    assert Tokenizers.load(tmp_path / "tokenizers").source.vocab_size == 293


def test_tokenizers_are_trained_again_if_the_text_changes_before_the_first_checkpoint(recipe, tmp_path, capsys):
    directory = tmp_path / "run" / "tokenizer"
    first = train_or_load_tokenizers(recipe, directory)
    path = recipe.data_directory / recipe.data.train[0].source
    path.write_text(path.read_text().translate(str.maketrans("abcdefg", "абцдефг")))
    capsys.readouterr()
    old = train_or_load_tokenizers(recipe, directory, compare_text=False)
    assert old.source.fingerprint == first.source.fingerprint
    for_check, _ = load_or_make_tokenizers(recipe, tmp_path / "run", use_run=True)
    second = train_or_load_tokenizers(recipe, directory)
    assert "the text or the model that the tokenizer was made from has changed since" in capsys.readouterr().err
    assert second.source.fingerprint != first.source.fingerprint
    assert for_check.files() == second.files()
    assert train_or_load_tokenizers(recipe, directory).source.fingerprint == second.source.fingerprint
    (tmp_path / "run" / "checkpoints" / "step-00000001").mkdir(parents=True)
    os.utime(path, (1, 1))
    assert train_or_load_tokenizers(recipe, directory).source.fingerprint == second.source.fingerprint
    assert "has changed" not in capsys.readouterr().err


# Subword sampling


@pytest.fixture
def sampled(tokenizers, recipe, tmp_path, monkeypatch):
    monkeypatch.setattr("seq2seq.data.resampled_epochs.BLOCK_PAIRS", 11)               # five blocks
    made = []

    def make(max_pieces=256):
        sampling = recipe_of(tmp_path, sampling=0.3, max_pieces=max_pieces)
        prepared = prepare(sampling, tokenizers, tmp_path / f"prepared-{len(made)}")
        made.append(ResampledEpochs(prepared, tokenizers, TrainingText.of(sampling)))
        return made[-1]

    yield make
    for epochs in made:
        epochs.close()


def test_an_epoch_is_sampled_identically_at_any_time_in_any_process(sampled):
    epochs = sampled()
    first, second = ((sentences(corpus.source), sentences(corpus.target))
                     for corpus in (epochs.corpus(0), epochs.corpus(1)))
    epochs.close()
    again = sampled().corpus(1)
    assert (sentences(again.source), sentences(again.target)) == second
    assert first != second


def test_every_epoch_has_the_same_text_in_other_pieces(sampled, tokenizers, tmp_path):
    epochs = sampled()
    for number in range(3):
        corpus = epochs.corpus(number)
        for side, tokenizer, name in ((corpus.source, tokenizers.source, "first.source"),
                                      (corpus.target, tokenizers.target, "first.target")):
            ids = sentences(side)
            assert all(sentence[-1] == END_ID for sentence in ids)
            assert tokenizer.decode([sentence[:-1] for sentence in ids]) == lines_of(tmp_path, name)
            assert [sentence[:-1] for sentence in ids] != tokenizer.encode(lines_of(tmp_path, name))


def test_a_sentence_that_sampling_makes_too_long_gets_its_usual_segmentation(sampled):
    longest = 13
    epochs = sampled(max_pieces=longest)
    corpora = [epochs.corpus(number) for number in range(3)]
    assert max(side.lengths.max() for corpus in corpora for side in (corpus.source, corpus.target)) == longest + 1


def test_past_epochs_are_deleted_and_the_next_is_made_ahead(sampled):
    epochs = sampled()
    directory = epochs.prepared.directory
    epochs.corpus(0)
    (directory / "epoch-00000-of-another-seed").mkdir()
    epochs.corpus(1)
    assert not list(directory.glob("epoch-00000*"))
    epochs.corpus(2)
    epochs.close()
    assert not list(directory.glob("epoch-*"))
    assert (directory / "source.ids").exists()


@pytest.mark.parametrize("temperature, shares", [(1, [0.9, 0.1]), (2, [0.75, 0.25]), (1e9, [0.5, 0.5])])
def test_a_temperature_oversamples_small_corpora_and_keeps_the_epoch_size(temperature, shares):
    sizes = np.array([900, 100])
    seen = corpus_repetitions(sizes, [1.0, 1.0], temperature)
    assert (seen * sizes).sum() == pytest.approx(1000)
    assert seen * sizes / 1000 == pytest.approx(np.array(shares), abs=1e-6)


def test_weights_multiply_sizes_and_an_empty_corpus_is_never_drawn():
    assert corpus_repetitions(np.array([10, 0, 30]), [3.0, 1.0, 1.0], 1) == pytest.approx(np.array([3, 0, 1]))
    assert corpus_repetitions(np.array([10, 0, 30]), [3.0, 1.0, 1.0], 5) == pytest.approx(np.array([3, 0, 1]))


def test_cleaning_ignores_the_tag(recipe, tmp_path):
    (tmp_path / "second.source").write_text("a\n\nsame\nb\nb\nc\nd\n")
    (tmp_path / "second.target").write_text("A\nB\nsame\nB\nB\n3\nD\n")
    tagged = recipe_of(tmp_path, second=[{**SECOND, "tag": "<2en>"}], remove_identical=True,
                       remove_duplicates=True, min_number_agreement=1.0)
    counts = Counts()
    kept = list(as_lines(cleaned(tagged.data.train[1], tagged, counts)))
    assert kept == [(1, "<2en> a", "A"), (4, "<2en> b", "B"), (7, "<2en> d", "D")]
    assert counts.dropped == {"empty": 1, "identical": 1, "duplicate": 1, "numbers": 1}


def test_other_languages_are_prepared_anew_for_they_say_which_side_of_a_memory_is_which(recipe, tokenizers, tmp_path):
    turned = Recipe.model_validate(recipe.model_dump() | {"languages": {"source": "en", "target": "de"}}
                                   ).with_directory(recipe.directory)
    directories = {prepare(each, tokenizers, tmp_path / "prepared").directory for each in (recipe, turned)}
    assert len(directories) == 2


def test_weights_that_leave_an_epoch_empty_are_refused(recipe, tokenizers, tmp_path):
    first = recipe.data.train[0].model_copy(update={"weight": 1e-6})
    hardly = recipe.model_copy(update={"data": recipe.data.model_copy(update={"train": (first,)})})
    with pytest.raises(CorpusError):
        prepare(hardly, tokenizers, tmp_path / "prepared")
