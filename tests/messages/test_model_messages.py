"""Messages about tokenizers, phrases of a search, sizes of models, and memory of a training."""

from functools import cache

import numpy as np
import torch
from catalogue import Catalogue

from seq2seq.data.batching import EncodedCorpus, EncodedSide, gather
from seq2seq.model.interface import Model
from seq2seq.model.layers import embeddings
from seq2seq.model.variants.pointer import PointerNetwork
from seq2seq.recipe import TokenizerSection, TrainingSection
from seq2seq.search.phrase_spelling import PhraseSpeller
from seq2seq.tokenizers.tokenizer import Tokenizer, Tokenizers, train_tokenizers
from seq2seq.tokenizers.whole_words import HEADER, position_fault
from seq2seq.training.step import TrainingStep

case = Catalogue("model")

PAIRS = [("ein Hund läuft", "a dog runs"), ("eine Katze schläft", "a cat sleeps")]


def train(pairs=PAIRS, sides=("source", "target"), **options):
    section = TokenizerSection(**{"type": "bpe", "vocab_size": 285, **options})
    return train_tokenizers(pairs, section, 1, sides=sides)


@cache
def tokenizer():
    return train().target


# Tokenizers


@case
def a_vocabulary_larger_than_the_text_allows(_):
    return train(vocab_size=9999)


@case
def a_vocabulary_too_small_for_the_characters(_):
    return train(vocab_size=261)


@case
def vocabularies_of_impossible_size_on_both_sides(_):
    return train(joint=False, vocab_size=9999, sides=("source (de)", "target (en)"))


@case
def a_vocabulary_of_impossible_size_on_one_side(_):
    return train([("a", target) for _, target in PAIRS], joint=False, vocab_size=275)


@case
def no_text_to_train_a_tokenizer_on(_):
    return train([])


@case
def no_words_to_train_a_vocabulary_on(_):
    return train([(" ", "")], type="words")


@case
def half_a_surrogate_pair(_):
    return tokenizer().encode(["ein", "\ud800"])


@case
def a_model_with_other_ids_of_symbols(_):
    import io

    import sentencepiece

    writer = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(PAIRS[0]), model_writer=writer, minloglevel=2,
                                             vocab_size=20, model_type="bpe", pad_id=0, unk_id=1, bos_id=2, eos_id=3)
    return Tokenizer(writer.getvalue())


@case
def a_damaged_model(folder):
    (folder / "tokenizer.model").write_bytes(b"no model")
    return Tokenizers.load(folder)


@case
def a_damaged_list_of_words(folder):
    (folder / "tokenizer.model").write_bytes(HEADER + b"2\none\n")
    return Tokenizers.load(folder)


@case
def a_model_that_is_a_directory(folder):
    (folder / "tokenizer.model").mkdir()
    return Tokenizers.load(folder)


@case
def no_tokenizer(folder):
    (folder / "source.model").write_bytes(tokenizer().model)
    return Tokenizers.load(folder)


@case
def a_damaged_vocabulary_of_a_marian_model(_):
    model = tokenizer().model
    return Tokenizers.from_files({"source.model": model, "target.model": model, "vocabulary.json": b"{}"}, "my_model")


@case
def a_target_of_a_pointer_that_is_no_position(_):
    return position_fault("20 5 10", "1 4")


# Phrases


@case
def a_required_phrase_with_a_control_character(_):
    return PhraseSpeller(tokenizer(), "en", False).required_phrase("a\x07b", line=6)


@case
def a_required_phrase_that_the_tokenizer_drops(_):
    folding = train(normalization="nmt_nfkc").target
    return PhraseSpeller(folding, "en", False).required_phrase("\u200b", line=6)


# Models


@case
def tied_embeddings_of_different_vocabularies(_):
    return embeddings("all", 23, 29, 4)


@case
def a_sentence_longer_than_the_positions(_):
    corpus = EncodedCorpus(EncodedSide.from_lists([[3, 4, 5, 6]]), EncodedSide.from_lists([[3]]))
    return PointerNetwork(source_vocab_size=23, d_model=2, max_positions=4)(gather(corpus, np.arange(1)))


# Memory


class TooLarge(Model):
    """Model for which memory never suffices."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def loss(self, batch, label_smoothing=0.0):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")


@case
def a_pair_too_large_for_memory(_):
    model = TooLarge()
    corpus = EncodedCorpus(EncodedSide.from_lists([[3, 4]]), EncodedSide.from_lists([[3]]), lines=np.array([17]))
    return TrainingStep(model, TrainingSection(), seed=1, max_length=9).update(corpus, [np.arange(1)], 1, 0.1)


test_message, test_every_message_belongs_to_a_case = case.tests()
