"""Preparation of text by blocks: interruptions, processes, duplicates and the sample of the tokenizer."""

import pickle

import numpy as np
import pytest

from seq2seq.data import kept_pairs as kept_module
from seq2seq.data import preparation, resampled_epochs, word_alignment
from seq2seq.data.block_processes import BlockProcesses
from seq2seq.data.corpus import Counts
from seq2seq.data.kept_pairs import KeptPairs, mark_repeated, quotas
from seq2seq.data.parallel_text import blocks
from seq2seq.data.preparation import TrainingText, cleaned, kept_pairs, make_tokenizers, prepare, sampled_pairs
from seq2seq.data.resampled_epochs import ResampledEpochs
from seq2seq.data.word_alignment import WordAligner
from seq2seq.recipe import Recipe
from seq2seq.storage import growing_files
from seq2seq.storage.atomic import temporary_path
from seq2seq.storage.growing_files import GrowingFiles
from seq2seq.tokenizers.tokenizer import train_tokenizers

WORDS = ["Hund", "Katze", "läuft", "schläft", "groß", "klein", "dog", "cat", "runs", "sleeps", "big", "small"]
SIZES = {"first": 101, "second": 47, "third": 3}


class Killed(BaseException):
    """End of a process in the middle of its work."""


@pytest.fixture
def recipe(tmp_path):
    random = np.random.default_rng(5)
    for name, size in SIZES.items():
        for side in ("source", "target"):
            lines = [" ".join(random.choice(WORDS, random.integers(1, 4 if side == "source" else 3)))
                     for _ in range(size)]
            (tmp_path / f"{name}.{side}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")

    def make(**sections):
        corpora = [{"source": f"{name}.source", "target": f"{name}.target"} for name in SIZES]
        cleaning = {"remove_duplicates": True, "max_pieces": 11, "max_length_deviation": 3.0, "language": "sides"}
        return Recipe.model_validate({
            "name": "test", "languages": {"source": "de", "target": "en"}, "seed": 3,
            "data": {"train": corpora, "valid": corpora[0], "cleaning": cleaning} | sections.get("data", {}),
            "tokenizer": {"vocab_size": 293, "subword_sampling": 0.1} | sections.get("tokenizer", {})
        }).with_directory(tmp_path)

    return make


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(kept_module, "BLOCK_LINES", 13)
    monkeypatch.setattr(preparation, "BLOCK_PAIRS", 7)
    monkeypatch.setattr(growing_files, "COMMIT_SECONDS", 0.0)


def contents(directory):
    return {path.relative_to(directory): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_a_preparation_that_is_killed_after_any_block_goes_on_and_ends_with_the_same_bytes(
        recipe, tmp_path, small_blocks, monkeypatch):
    text = TrainingText.of(recipe())
    tokenizers = make_tokenizers(text)
    expected = prepare(text, tokenizers, tmp_path / "whole", 1)
    commit, killed = GrowingFiles.commit, 0

    def commit_and_die(files, state, now=False):
        nonlocal killed
        path = files.directory / growing_files.STATE
        before = path.read_bytes() if path.exists() else b""
        commit(files, state, now)
        if path.read_bytes() == before:                                         # the last commit, of an earlier attempt
            return
        files.files[next(iter(files.files))].write(b"not committed")
        temporary_path(path).write_bytes(b"a state that is half written")
        killed += 1
        raise Killed

    while True:
        # Each attempt ends after its first block, so it fails if that block is not kept.
        with monkeypatch.context() as patch:
            patch.setattr(GrowingFiles, "commit", commit_and_die)
            try:
                prepare(text, tokenizers, tmp_path / "parts", 1)
            except Killed:
                assert killed < 60
                continue
        break
    assert killed > 25
    assert contents(tmp_path / "parts") == contents(tmp_path / "whole")
    assert 0 < len(expected.corpus) < sum(SIZES.values())


@pytest.mark.slow
def test_the_number_of_processes_changes_nothing(recipe, tmp_path, small_blocks):
    text = TrainingText.of(recipe(data={"context": 1}))
    tokenizers = make_tokenizers(text)
    prepare(text, tokenizers, tmp_path / "one", 1)
    prepare(text, tokenizers, tmp_path / "two", 2)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def test_the_kept_pairs_are_those_of_cleaning_in_one_pass(recipe, tmp_path, small_blocks):
    text = TrainingText.of(recipe())
    seen, pairs, counts = {}, [], []
    for spec in text.corpora:
        counts.append(Counts())
        pairs += [(source.text, target) for _, source, target in cleaned(spec, text.recipe, counts[-1], seen)]
    with BlockProcesses(1) as processes:
        kept = kept_pairs(text, (True, True), tmp_path / "kept", processes)
    assert kept.sizes == [each.kept for each in counts]
    assert [each.to_dict() for each in kept.counts] == [each.to_dict() for each in counts]
    assert list(sampled_pairs(text, kept)) == pairs
    assert kept.characters == [sum(map(len, side)) for side in zip(*pairs, strict=True)]


def test_duplicates_are_found_part_by_part(tmp_path, monkeypatch):
    monkeypatch.setattr(kept_module, "HASHES", 11)
    monkeypatch.setattr(kept_module, "CHUNK", 7)
    hashes = np.random.default_rng(2).integers(0, 60, 101).astype(np.uint64)
    hashes.tofile(tmp_path / "hashes")
    repeated = np.zeros(len(hashes), bool)
    mark_repeated(tmp_path / "hashes", repeated)
    assert repeated.tolist() == [value in hashes[:index] for index, value in enumerate(hashes)]


# Epochs that are encoded anew, and word alignments


@pytest.fixture
def epochs_of(recipe, tmp_path, small_blocks, monkeypatch):
    monkeypatch.setattr(resampled_epochs, "BLOCK_PAIRS", 7)
    text = TrainingText.of(recipe(data={"augmentation": {"terms": 0.3, "typos": 0.3}}))
    tokenizers = make_tokenizers(text)

    def make(name, **options):
        prepared = prepare(text, tokenizers, tmp_path / name, 1)
        return ResampledEpochs(prepared, tokenizers, text, ahead=False, **options)

    return make


def epoch_files(directory):
    return {path.name: contents for path, contents in contents_of(directory, "epoch-*/*").items()
            if path.suffix in (".ids", ".offsets")}


def contents_of(directory, pattern):
    return {path: path.read_bytes() for path in directory.rglob(pattern)}


@pytest.mark.slow
def test_an_epoch_of_several_processes_is_that_of_one(epochs_of, tmp_path, monkeypatch):
    # Processes do not see the patched size of blocks, from which the index of a pair, and so its changes, follow.
    monkeypatch.setattr(resampled_epochs, "BLOCK_PAIRS", 8192)
    whole = epochs_of("whole")
    monkeypatch.setattr(resampled_epochs, "blocks", lambda pairs, size: blocks(pairs, 7))
    for name, processes in (("one", 1), ("two", 2)):
        epochs_of(name, processes=processes).corpus(0)
    assert epoch_files(tmp_path / "one") == epoch_files(tmp_path / "two")
    assert len(epoch_files(tmp_path / "one")) == 4 and len(whole.prepared.corpus) > 100


def test_an_epoch_whose_encoding_is_interrupted_is_continued(epochs_of, tmp_path, monkeypatch):
    epochs_of("whole").corpus(0)
    encoded, encode = [], resampled_epochs._encoded_block

    def interrupted(*arguments):
        if len(encoded) in (5, 12):
            encoded.append("")
            raise Killed
        encoded.append(arguments[-1][0])
        return encode(*arguments)

    monkeypatch.setattr(resampled_epochs, "_encoded_block", interrupted)
    for _ in range(2):
        with pytest.raises(Killed):
            epochs_of("parts").corpus(0)
    epochs_of("parts").corpus(0)
    assert epoch_files(tmp_path / "parts") == epoch_files(tmp_path / "whole")
    numbers = [number for number in encoded if number != ""]
    assert numbers == list(range(len(numbers)))                                 # none twice
    epochs_of("parts").corpus(0)
    assert len(encoded) == len(numbers) + 2                                     # it is there


def test_a_word_aligner_of_a_text_is_that_of_a_list_of_its_pairs(tmp_path, monkeypatch):
    random = np.random.default_rng(3)
    pairs = [(" ".join(random.choice(WORDS, random.integers(0, 9))), " ".join(random.choice(WORDS, 5)))
             for _ in range(101)]
    monkeypatch.setattr(word_alignment, "MAX_CELLS", 900)
    monkeypatch.setattr(word_alignment, "BLOCK_PAIRS", 13)
    listed = WordAligner([split_pair(*pair) for pair in pairs])
    with BlockProcesses(1) as processes:
        read = WordAligner.of_text(lambda: iter(pairs), split_pair, processes)
    shared = pickle.loads(pickle.dumps(read.shared(tmp_path)))
    for pair in pairs:
        for aligner in (read, shared):
            assert np.array_equal(aligner.weights(*split_pair(*pair)), listed.weights(*split_pair(*pair)))
    assert len(pickle.dumps(shared)) < len(pickle.dumps(listed))


def split_pair(source, target):
    return source.split(), target.split()


# The sample of the tokenizer


def test_a_sample_gives_a_small_corpus_its_share_up_to_all_of_its_pairs():
    assert quotas([1000, 100], [1, 1], 100) == [50, 50]
    assert quotas([1000, 10], [1, 1], 100) == [90, 10]
    assert quotas([1000, 10, 500], [0, 1, 3], 500) == [0, 10, 490]
    assert quotas([5, 7, 3], [1, 1e-9, 1e-9], 15) == [5, 7, 3]
    assert sum(quotas([10**8, 10**4, 3], [1e8 ** 0.2, 1e4 ** 0.2, 3 ** 0.2], 500_000)) == 500_000


def test_a_temperature_applies_to_the_sample_of_the_tokenizer(recipe, tmp_path):
    with BlockProcesses(1) as processes:
        text = TrainingText.of(recipe(data={"temperature": 5.0, "cleaning": {"remove_duplicates": False}},
                                      tokenizer={"sample_lines": 60}))
        warm = kept_pairs(text, (True, True), tmp_path, processes)
    lines = {name: set(zip(*((tmp_path / f"{name}.{side}").read_text().splitlines() for side in ("source", "target")),
                           strict=True)) for name in SIZES}
    sample = list(sampled_pairs(text, warm))
    assert len(sample) == 30 and set(sample[-3:]) <= lines["third"]             # all pairs of the small corpus


def test_the_sample_of_corpora_without_weights_is_uniform_over_their_pairs(recipe, tmp_path):
    kept = KeptPairs(tmp_path, [], [500, 20], [0, 0])
    assert kept.sample(100, 1, None) == KeptPairs(tmp_path, [], [520], [0, 0]).sample(100, 1, None)


def test_a_tokenizer_of_a_sample_is_that_of_one_pass_over_the_text(recipe):
    one = recipe(tokenizer={"sample_lines": 120, "vocab_size": "auto"})
    text = TrainingText(one, one.data.train[:1])
    pairs = [(source.text, target) for _, source, target in cleaned(text.corpora[0], one, Counts())]
    assert len(pairs) > 60
    assert make_tokenizers(text).files() == train_tokenizers(pairs, one.tokenizer, one.seed).files()
