"""A look-up table with the model interface, and exhaustive search over its outputs, as references for search."""

import itertools

import numpy as np

from seq2seq.search.beam import search
from seq2seq.search.options import SearchOptions, power_length_penalty
from seq2seq.search.scores import ArrayScores
from seq2seq.tokenizers.tokenizer import END_ID, START_ID, UNKNOWN_ID

VOCAB_SIZE = 7
BANNED = (UNKNOWN_ID, START_ID, 5)
WORDS = (3, 4, 6)


class Table:
    """Model whose logits are pseudo-random numbers that depend only on the sentence and the target prefix.

    end: value added to the logit of `</s>`; the higher it is, the shorter the translations.
    """

    def __init__(self, dtype=np.float64, end=0.0, vocab_size=VOCAB_SIZE):
        self.dtype, self.end, self.vocab_size = dtype, end, vocab_size
        self.rows_of_steps = []

    def logits(self, sentence, prefix):
        row = np.random.default_rng([sentence, *prefix]).normal(size=self.vocab_size)
        row[END_ID] += self.end
        return row

    def log_probabilities(self, sentence, prefix):
        row = self.logits(sentence, prefix)
        return row - np.log(np.exp(row).sum())

    def start(self, source, source_offsets, keep_attention=False):
        return TableState(tuple((int(source[begin]), ()) for begin in source_offsets[:-1]), len(source_offsets) - 1)

    def step(self, last_tokens, state):
        self.rows_of_steps.append(len(state.rows))
        rows = tuple((sentence, (*prefix, int(token)))
                     for (sentence, prefix), token in zip(state.rows, last_tokens, strict=True))
        assert all(prefix[0] == START_ID for _, prefix in rows)
        logits = np.stack([self.logits(sentence, prefix[1:]) for sentence, prefix in rows])
        return ArrayScores(logits.astype(self.dtype)), TableState(rows, state.sentences)


class TableState:
    """State of `Table`: (sentence, target prefix) of each row."""

    attention = None

    def __init__(self, rows, sentences):
        self.rows, self.sentences = rows, sentences

    def select(self, rows):
        beam = len(self.rows) // self.sentences
        assert ((rows // beam) == (rows[:, :1] // beam)).all(), "a line selects rows of several sentences"
        return TableState(tuple(self.rows[row] for row in rows.flatten().tolist()), len(rows))


def arrays_of(batch):
    """Return the source of a batch of tensors as search takes it."""
    return batch.source.cpu().numpy(), batch.source_offsets.cpu().numpy()


def on_host(model):
    """Return a model in PyTorch with the interface of search."""
    from seq2seq.inference.eager import EagerEngine

    return EagerEngine(model, "fp32", next(model.parameters()).device)


def translate(model, sentences, *, beam_size, max_length=5, alpha=1.0, length_penalty=None, banned=BANNED, **options):
    """Search with `Table`. Sentences are integers; each is the only token of its source."""
    lengths = max_length if isinstance(max_length, list) else [max_length] * len(sentences)
    return search(model, np.array(sentences), np.arange(len(sentences) + 1, dtype=np.int32), lengths,
                  SearchOptions(beam_size, length_penalty or power_length_penalty(alpha), banned_ids=banned, **options))


def every_translation(table, sentence, max_length):
    """Yield (tokens, log p) of every target of at most `max_length` tokens, `</s>` included."""
    for length in range(max_length):
        for tokens in itertools.product(WORDS, repeat=length):
            steps = [table.log_probabilities(sentence, tokens[:place])[token]
                     for place, token in enumerate((*tokens, END_ID))]
            yield list(tokens), sum(steps)
