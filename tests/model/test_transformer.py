import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from seq2seq.data.batching import EncodedCorpus, EncodedSide, Shape, gather
from seq2seq.model import build_model
from seq2seq.model.layers import Dropout, Lookup, fairseq_sinusoids, sinusoids
from seq2seq.model.loss import smoothed_cross_entropy
from seq2seq.model.packing import Sentences
from seq2seq.model.transformer import Transformer
from seq2seq.model.variants.rnn import RecurrentModel
from seq2seq.recipe import TransformerSection
from seq2seq.tokenizers.tokenizer import END_ID, START_ID

ROUNDING = {"rtol": 0, "atol": 1e-12}

T5 = {"pre_norm": True, "norm_type": "rms", "positions": "relative", "score": "dot", "gated": True, "bias": False,
      "activation": "gelu_tanh", "head_size": 5, "tied_embeddings": "inputs"}
CHOICES = [
    {"pre_norm": False}, {"pre_norm": True}, {"activation": "relu"}, {"activation": "gelu"}, {"activation": "silu"},
    {"positions": "sinusoidal"}, {"positions": "fairseq"}, {"positions": "learned"}, {"decoder_start": "</s>"},
    {"embedding_norm": True}, {"positions": "relative"}, {"decoder_start": "<unk>"}, {"activation": "gelu_tanh"},
    {"norm_type": "rms"}, {"gated": True}, {"bias": False}, {"bias": False, "score": "dot"}, {"head_size": 5},
    {"tied_embeddings": "inputs"}, {"tied_embeddings": "all"}, {"tied_embeddings": "decoder"},
    {"tied_embeddings": "none"}, {"output_bias": True}, {"output_bias": False}, {"scale_embedding": True},
    {"scale_embedding": False}, {"tied_decoder_layers": True}, {"tied_decoder_layers": False},
]
every_choice = pytest.mark.parametrize("choice", CHOICES, ids=str)
FAMILY = [
    {"pre_norm": False}, {"pre_norm": True}, {"score": "dot"}, {"score": "additive"}, {"score": "bilinear"},
    {"normalize": "relu"}, {"score": "additive", "normalize": "relu"}, {"selection": "hard"},
    {"selection": "structured"}, {"window": 1},
    {"positions": "relative"}, T5,
    {"window": 3, "score": "additive"}, {"kind": RecurrentModel}, {"kind": RecurrentModel, "cell": "lstm"},
    {"kind": RecurrentModel, "input_feeding": True, "decoder_layers": 1, "num_heads": 1},
    {"kind": RecurrentModel, "score": "dot"}, {"kind": RecurrentModel, "score": "scaled_dot"},
    {"kind": RecurrentModel, "score": "bilinear"}, {"kind": RecurrentModel, "normalize": "relu"},
    {"kind": RecurrentModel, "selection": "hard"}, {"kind": RecurrentModel, "selection": "structured"},
]
SLOW = [
    {"score": "bilinear"}, {"score": "additive", "normalize": "relu"}, {"window": 1},
    {"kind": RecurrentModel, "score": "scaled_dot"}, {"kind": RecurrentModel, "score": "bilinear"},
    {"kind": RecurrentModel, "normalize": "relu"}, {"kind": RecurrentModel, "cell": "lstm"}]
every_member = pytest.mark.parametrize(
    "member", [pytest.param(member, marks=pytest.mark.slow if member in SLOW else ()) for member in FAMILY],
    ids=lambda member: " ".join(str(getattr(value, "__name__", f"{key}={value}")) for key, value in member.items()))
both_norms = pytest.mark.parametrize("pre_norm", [False, True], ids=["post-norm", "pre-norm"])


def target_spans(batch):
    offsets = batch.target_offsets.tolist()
    return [slice(begin, end) for begin, end in zip(offsets, offsets[1:], strict=False)]


def pairs_of(*pairs):
    """Return a packed batch of pairs, given as ids without `</s>`."""
    sources, targets = zip(*pairs, strict=True)
    corpus = EncodedCorpus(EncodedSide.from_lists(sources), EncodedSide.from_lists(targets))
    return gather(corpus, np.arange(len(pairs)))


def changed(batch, **fields):
    return type(batch)(**(vars(batch) | fields))


# Who sees what


@every_member
def test_outputs_do_not_depend_on_future_tokens(make_model, make_batch, member):
    model, batch = make_model(**member), make_batch()
    before = model.forward(batch).dense()
    span = target_spans(batch)[1]
    for position in (span.start + 1, span.stop - 1):
        target_input = batch.target_input.clone()
        target_input[position] = 3 if target_input[position] != 3 else 5
        after = model.forward(changed(batch, target_input=target_input)).dense()
        torch.testing.assert_close(after[:position], before[:position], **ROUNDING)
        torch.testing.assert_close(after[span.stop :], before[span.stop :], **ROUNDING)
        assert (after[position] - before[position]).abs().max() > 1e-3


@every_member
def test_outputs_do_not_depend_on_other_sentences_of_the_batch(make_model, member):
    model = make_model(**member)
    pair = ([3, 5, 7], [4, 6, 8, 9])
    alone = model.forward(pairs_of(pair)).dense()
    between = pairs_of(([11] * 7, [12] * 2), pair, ([13], [14] * 10))
    among_others = model.forward(between).dense()[target_spans(between)[1]]
    torch.testing.assert_close(among_others, alone, **ROUNDING)


def test_every_target_position_depends_on_every_source_token(make_model):
    model = make_model()
    before = model.forward(pairs_of(([3, 5, 7], [4, 6]))).dense()
    for source in ([9, 5, 7], [3, 9, 7], [3, 5, 9]):
        after = model.forward(pairs_of((source, [4, 6]))).dense()
        assert (after - before).abs().amax(1).min() > 1e-3


@both_norms
def test_padding_to_a_fixed_shape_changes_nothing(make_model, make_batch, pre_norm):
    # 17 source and 21 target tokens in 4 sentences get tails of 14 and 8 tokens and 7 empty sentences.
    model = make_model(pre_norm=pre_norm)
    results = []
    for fill in (None, Shape(source_tokens=31, target_tokens=29, sentences=11)):
        batch = make_batch(fill=fill)
        model.zero_grad()
        loss = smoothed_cross_entropy(model.forward(batch), batch.target_output, batch.target_count, 0.1)
        loss.total.backward()
        results.append((loss, {name: weight.grad for name, weight in model.named_parameters()}))
    (loss, gradients), (filled_loss, filled_gradients) = results
    assert loss.tokens == filled_loss.tokens == 21
    torch.testing.assert_close(filled_loss.total, loss.total, rtol=1e-12, atol=0)
    torch.testing.assert_close(filled_loss.negative_log_likelihood, loss.negative_log_likelihood, rtol=1e-12, atol=0)
    for name, gradient in gradients.items():
        torch.testing.assert_close(filled_gradients[name], gradient, rtol=0, atol=1e-11, msg=name)


# Step by step


def step_through(model, batch):
    """Return the log-probabilities of every target position, computed step by step."""
    rows = [batch.target_input[span] for span in target_spans(batch)]
    state = model.start(batch.source, batch.source_offsets, batch.longest_source)
    steps = []
    for position in range(batch.longest_target):
        tokens = torch.stack([row[position] if position < len(row) else torch.tensor(END_ID) for row in rows])
        logits, state = model.step(tokens, state)
        steps.append(logits)
    return torch.cat([torch.stack(steps[: len(row)])[:, number] for number, row in enumerate(rows)])


@pytest.mark.parametrize("choice", [
    pytest.param(choice, marks=pytest.mark.slow if choice in SLOW else ())
    for choice in [*CHOICES, *FAMILY[2:]]], ids=str)
@torch.no_grad()
def test_step_by_step_equals_teacher_forcing(make_model, make_batch, choice):
    model, batch = make_model(**choice), make_batch()
    expected = model.forward(batch).dense()
    torch.testing.assert_close(step_through(model, batch), expected, rtol=0, atol=1e-10)


class Decoding:
    """Runs steps of a model and tracks the target prefix of every row independently."""

    def __init__(self, model, sources):
        self.model, self.sources, self.random = model, sources, np.random.default_rng(1)
        side = EncodedSide.from_lists(sources)
        ids, offsets, _ = side.gather(np.arange(len(sources)))
        self.state = model.start(torch.from_numpy(ids), torch.from_numpy(offsets.astype(np.int32)),
                                 int(side.lengths.max()), keep_attention=True)
        self.rows = [(number, []) for number in range(len(sources))]            # (sentence, tokens so far) of each row

    def step(self):
        """Feed a different token to each row (first the start symbol), and compare all rows with teacher forcing."""
        if self.rows[0][1]:
            self.rows = [(sentence, [*tokens[:-1], int(self.random.integers(3, 23))]) for sentence, tokens in self.rows]
        last_tokens = torch.tensor([tokens[-1] if tokens else START_ID for _, tokens in self.rows])
        logits, self.state = self.model.step(last_tokens, self.state)
        batch = pairs_of(*((self.sources[sentence], tokens) for sentence, tokens in self.rows))
        expected = self.model.forward(batch).dense()[batch.target_offsets[1:].long() - 1]
        torch.testing.assert_close(logits, expected, rtol=0, atol=1e-10)
        self.rows = [(sentence, [*tokens, 3]) for sentence, tokens in self.rows]

    def select(self, rows):
        self.state = self.state.select(torch.tensor(rows))
        self.rows = [self.rows[row] for line in rows for row in line]


SOURCES = [[3, 5, 7, 9], [4], [6, 8, 10, 12, 14, 16], [11, 13]]


@every_member
@torch.no_grad()
def test_selected_rows_continue_from_their_own_state(make_model, member):
    decoding = Decoding(make_model(**member), SOURCES)
    decoding.step()
    decoding.select([[0, 0, 0], [1, 1, 1], [2, 2, 2], [3, 3, 3]])               # grow to beams
    decoding.step()
    decoding.select([[2, 0, 1], [3, 3, 5], [8, 7, 6], [9, 11, 9]])              # reorder and drop beams
    decoding.step()
    decoding.select([[1, 2, 0], [8, 6, 8], [11, 10, 9]])                        # drop the second sentence
    decoding.step()
    decoding.select([[4, 3]])                                                   # all but one, and a narrower beam
    decoding.step()


@torch.no_grad()
def test_a_step_does_not_modify_its_input_state(make_model, make_batch):
    model, batch = make_model(), make_batch()
    state = model.start(batch.source, batch.source_offsets, batch.longest_source)
    first = torch.full((4,), START_ID)
    once, after = model.step(first, state)
    model.step(first, after)
    again, _ = model.step(first, state)
    assert torch.equal(once, again)


@torch.no_grad()
def test_requested_attention_is_returned_and_follows_its_row(make_model, make_batch):
    model, batch = make_model(), make_batch()
    tokens = torch.full((4,), START_ID)
    _, without = model.step(tokens, model.start(batch.source, batch.source_offsets, batch.longest_source))
    assert without.attention is None
    _, state = model.step(tokens, model.start(batch.source, batch.source_offsets, batch.longest_source, True))
    assert state.attention.shape == (4, 7)
    torch.testing.assert_close(state.attention.sum(1), torch.ones(4, dtype=torch.float64))
    for attention, length in zip(state.attention, batch.source_offsets.diff().tolist(), strict=True):
        assert attention[:length].min() > 0 and attention[length:].eq(0).all()
    selected = state.select(torch.tensor([[1, 1], [3, 3]]))
    assert torch.equal(selected.attention, state.attention[[1, 1, 3, 3]])


# Choices, sizes and limits


@every_choice
def test_every_architecture_option_gives_gradients_to_all_parameters(make_model, make_batch, choice):
    model, batch = make_model(**choice), make_batch()
    smoothed_cross_entropy(model.forward(batch), batch.target_output, batch.target_count).total.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().max() > 0, name


def test_recipe_keys_build_the_same_model_as_constructor_arguments():
    section = TransformerSection(
        d_model=14, encoder_layers=2, decoder_layers=3, num_heads=7, feed_forward=17, dropout=0.3, activation="silu",
        norm="pre", positions="learned", max_positions=19, tied_embeddings="none", scale_embedding=False,
        output_bias=True,
    )
    model = build_model(section, source_vocab_size=11, target_vocab_size=13)
    shapes = {name: tuple(weight.shape) for name, weight in model.named_parameters() if "." not in name}
    assert shapes == {
        "target_embedding": (13, 14), "source_embedding": (11, 14), "output_weight": (13, 14), "output_bias": (13,),
        "source_positions": (19, 14), "target_positions": (19, 14),
    }
    assert (len(model.encoder), len(model.decoder), model.scale) == (2, 3, 1.0)
    layer = model.decoder[0]
    assert layer.self_attention.num_heads == layer.cross_attention.num_heads == 7
    assert layer.feed_forward.inner.out_features == 17 and layer.feed_forward.activation is F.silu
    assert layer.self_residual.pre_norm and layer.self_residual.dropout.probability == model.dropout.probability == 0.3


@pytest.mark.parametrize(("tied", "embeddings"), [("all", 1), ("decoder", 2), ("none", 3)])
def test_tied_embeddings_are_one_matrix(make_model, tied, embeddings):
    model = make_model(tied_embeddings=tied)
    named = [name for name, _ in model.named_parameters() if "embedding" in name or "output" in name.split(".")[0]]
    assert len(named) == embeddings


def test_tied_decoder_layers_are_one_layer_that_runs_several_times(make_model, make_batch):
    tied = make_model(decoder_layers=3, tied_decoder_layers=True)
    untied = make_model(decoder_layers=3)
    shared = {name: weight for name, weight in tied.named_parameters() if name.startswith("decoder.")}
    assert {name.split(".")[1] for name in shared} == {"0"} and len(tied.decoder) == 3
    untied.load_state_dict(tied.state_dict())
    batch = make_batch()
    for model in (tied, untied):
        model.train()(batch).dense().square().sum().backward()
    assert torch.equal(tied(batch).dense(), untied(batch).dense())
    copies = dict(untied.named_parameters())
    for name, weight in shared.items():
        of_copies = sum(copies[name.replace("decoder.0", f"decoder.{layer}")].grad for layer in range(3))
        torch.testing.assert_close(weight.grad, of_copies, rtol=1e-4, atol=1e-5)


def test_vocabularies_of_different_size_cannot_share_a_matrix(make_model):
    with pytest.raises(ValueError):
        make_model(target_vocab_size=29)
    assert make_model(target_vocab_size=29, tied_embeddings="decoder").output_weight.shape == (29, 14)


def test_the_base_model_has_60_522_496_parameters():
    # Table 3 of the paper says 65 million with 37,000 pieces; here 32,000 pieces, and no norm after the stacks.
    vocab_size, d_model, feed_forward = 32_000, 512, 2048
    with torch.device("meta"):
        model = build_model(TransformerSection(), vocab_size, vocab_size)
        theirs = torch.nn.Transformer(d_model, 8, 6, 6, feed_forward, batch_first=True)
    attention = 4 * (d_model * d_model + d_model)
    transformed = (d_model * feed_forward + feed_forward) + (feed_forward * d_model + d_model)
    norm = 2 * d_model
    encoder_layer = attention + transformed + 2 * norm
    decoder_layer = 2 * attention + transformed + 3 * norm
    count = sum(parameter.numel() for parameter in model.parameters())
    assert count == vocab_size * d_model + 6 * encoder_layer + 6 * decoder_layer == 60_522_496
    layers = sum(parameter.numel() for parameter in theirs.parameters()) - 2 * norm
    assert count - vocab_size * d_model == layers


def test_a_sentence_longer_than_the_positions_is_an_error(make_model):
    model = make_model(max_positions=7)
    model.forward(pairs_of(([3] * 6, [4] * 6)))
    for pair in (([3] * 7, [4]), ([3], [4] * 7)):
        with pytest.raises(ValueError):
            model.forward(pairs_of(pair))


# Parts


def test_positions_of_fairseq_are_those_of_transformers():
    models = pytest.importorskip("transformers.models.m2m_100.modeling_m2m_100")
    table = models.M2M100SinusoidalPositionalEmbedding.get_embedding(13, 14, padding_idx=1)
    torch.testing.assert_close(fairseq_sinusoids(11, 14), table[2:], rtol=0, atol=1e-6)


def test_the_decoder_begins_with_the_embedding_of_its_start_symbol(make_model, make_batch):
    ours, usual = make_model(decoder_start="</s>", tied_embeddings="none"), make_model(tied_embeddings="none")
    batch = make_batch()
    ours.load_state_dict(usual.state_dict())
    assert not torch.equal(ours(batch).dense(), usual(batch).dense())
    with torch.no_grad():
        usual.target_embedding[START_ID] = usual.target_embedding[END_ID]
    assert torch.equal(ours(batch).dense(), usual(batch).dense())


def test_positions_are_the_sinusoids_of_the_paper():
    # Section 3.5: PE(pos, 2i) = sin(pos / 10000^(2i/d_model)), PE(pos, 2i+1) = cos of the same; the first is 0.
    positions = sinusoids(11, 14)
    assert positions.shape == (11, 14)
    assert positions[0].tolist() == [0, 1] * 7
    for position in range(11):
        for i in range(7):
            angle = position / 10000 ** (2 * i / 14)
            assert positions[position, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-7)
            assert positions[position, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-7)
    assert positions[1, 0].item() == pytest.approx(0.8414710, abs=1e-7)         # sin 1


@pytest.mark.parametrize("scale", [True, False])
def test_the_encoder_reads_scaled_embeddings_plus_positions(make_model, scale):
    model = make_model(scale_embedding=scale, encoder_layers=0)
    batch = pairs_of(([3, 5], [4]), ([7], [4]))
    memory = model.start(batch.source, batch.source_offsets, batch.longest_source)
    assert memory.source_bias[:, 0, 0].tolist() == [[0, 0, 0], [0, 0, -math.inf]]
    encoded, _ = model.encode(batch.source, Sentences.from_offsets(batch.source_offsets, 3))
    expected = model.source_embedding[[3, 5, END_ID, 7, END_ID]] * (math.sqrt(14) if scale else 1)
    expected = expected + sinusoids(3, 14)[[0, 1, 2, 0, 1]].double()
    torch.testing.assert_close(encoded, expected, **ROUNDING)


def test_embedding_gradients_equal_those_of_torch():
    torch.manual_seed(1)
    tokens = torch.tensor([3, 0, 3, 7, 3, 10])
    weight = torch.randn(11, 5, dtype=torch.float64, requires_grad=True)
    arriving = torch.randn(6, 5, dtype=torch.float64)
    assert torch.equal(Lookup.apply(weight, tokens), F.embedding(tokens, weight))
    (gradient,) = torch.autograd.grad(Lookup.apply(weight, tokens), weight, arriving)
    (expected,) = torch.autograd.grad(F.embedding(tokens, weight), weight, arriving)
    torch.testing.assert_close(gradient, expected, **ROUNDING)


def test_a_frequent_word_keeps_all_its_gradients_in_half_precision():
    # 1,000 times 1 added one by one in bf16 stays at 256: 256 + 1 rounds to 256.
    weight = torch.zeros(3, 2, dtype=torch.bfloat16, requires_grad=True)
    Lookup.apply(weight, torch.ones(1000, dtype=torch.int64)).sum().backward()
    assert weight.grad.tolist() == [[0, 0], [1000, 1000], [0, 0]]


@pytest.mark.parametrize("probability", [0.1, 0.3, 0.5])
def test_dropout_drops_its_share_and_keeps_the_mean(probability):
    torch.manual_seed(1)
    hidden = torch.ones(499, 997, requires_grad=True)
    dropped = Dropout(probability)(hidden)
    # Five standard deviations of a share of 497,503 draws.
    tolerance = 5 * math.sqrt(probability * (1 - probability) / hidden.numel())
    assert (dropped == 0).float().mean().item() == pytest.approx(probability, abs=tolerance)
    assert dropped.mean().item() == pytest.approx(1, abs=tolerance / (1 - probability))
    kept = dropped[dropped != 0].unique()
    assert kept.numel() == 1 and kept.item() == pytest.approx(1 / (1 - probability), rel=1e-4)
    dropped.sum().backward()
    assert torch.equal(hidden.grad, dropped)                                    # what is dropped gets no gradient


def test_dropout_draws_a_new_mask_each_time_and_is_off_in_evaluation():
    torch.manual_seed(1)
    dropout, hidden = Dropout(0.5), torch.ones(7, 11)
    assert not torch.equal(dropout(hidden), dropout(hidden))
    assert dropout.eval()(hidden) is hidden
    assert Dropout(0)(hidden) is hidden


def test_a_dropout_that_rounds_to_1_is_no_division_by_0():
    assert Dropout(1 - 1e-6)(torch.ones(7, 11)).isfinite().all()


def test_dropout_follows_the_embeddings_and_every_sublayer(make_model, make_batch):
    # Section 5.4: on the output of each sub-layer before it is added, and on the sums of embeddings and positions.
    model, reached = make_model(dropout=0.3), []
    for name, module in model.named_modules():
        if isinstance(module, Dropout):
            assert module.probability == 0.3
            module.register_forward_hook(lambda *_, name=name: reached.append(name))
    model.forward(make_batch())
    encoder = [f"encoder.{layer}.{part}_residual.dropout" for layer in range(2) for part in ("self", "feed_forward")]
    decoder = [f"decoder.{layer}.{part}_residual.dropout" for layer in range(3)
               for part in ("self", "cross", "feed_forward")]
    assert reached == ["dropout", *encoder, "dropout", *decoder]


@both_norms
def test_the_initial_loss_is_about_log_of_the_vocabulary_size(make_batch, pre_norm):
    # Six layers as the paper stacks them. Hidden states of unit variance times embeddings of deviation 1/sqrt(d_model)
    # are logits with a normal distribution, for which the mean of the loss is log V + 1/2.
    torch.manual_seed(1)
    model = Transformer(source_vocab_size=997, target_vocab_size=997, d_model=64, encoder_layers=6, decoder_layers=6,
                        num_heads=4, feed_forward=256, pre_norm=pre_norm)
    batch = make_batch([29] * 11, [31] * 11, vocab_size=997)
    loss = smoothed_cross_entropy(model(batch), batch.target_output, batch.target_count)
    assert loss.negative_log_likelihood.item() / loss.tokens == pytest.approx(math.log(997) + 0.5, abs=0.1)
