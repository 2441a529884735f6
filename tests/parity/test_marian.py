"""The Transformer and beam search give the results of transformers.MarianMTModel with the same random weights."""

import numpy as np
import pytest
import torch
from lookup import on_host

from seq2seq.data.batching import EncodedCorpus, EncodedSide, gather
from seq2seq.model.transformer import Transformer
from seq2seq.search.beam import search
from seq2seq.search.options import SearchOptions, power_length_penalty
from seq2seq.tokenizers.tokenizer import END_ID, START_ID, UNKNOWN_ID

transformers = pytest.importorskip("transformers")

VOCAB_SIZE, D_MODEL, LAYERS, NUM_HEADS, FEED_FORWARD = 37, 22, 2, 11, 53
# Marian's vocabularies begin with </s> and <unk> and end with <pad>, which is also the decoder's start symbol.
MARIAN_END, MARIAN_UNKNOWN, MARIAN_PAD = 0, 1, VOCAB_SIZE - 1

# Marian's id for each id of this package.
special = {UNKNOWN_ID: MARIAN_UNKNOWN, START_ID: MARIAN_PAD, END_ID: MARIAN_END}
TO_MARIAN = torch.tensor([special.get(index, index - 1) for index in range(VOCAB_SIZE)])
FROM_MARIAN = TO_MARIAN.argsort()

# Marian's position encodings have all sines, then all cosines; those of this package alternate. Positions are added to
# embeddings, so the d_model axis of all weights is reordered: 0, 11, 1, 12, ...
ORDER = torch.arange(D_MODEL).view(2, -1).T.flatten()


def random_marian(seed, embedding_deviation=0.3):
    torch.manual_seed(seed)
    config = transformers.MarianConfig(
        vocab_size=VOCAB_SIZE, d_model=D_MODEL, encoder_layers=LAYERS, decoder_layers=LAYERS + 1,
        encoder_attention_heads=NUM_HEADS, decoder_attention_heads=NUM_HEADS, encoder_ffn_dim=FEED_FORWARD,
        decoder_ffn_dim=FEED_FORWARD, activation_function="swish", scale_embedding=True, max_position_embeddings=101,
        eos_token_id=MARIAN_END, pad_token_id=MARIAN_PAD, decoder_start_token_id=MARIAN_PAD, forced_eos_token_id=None,
        attn_implementation="eager",
    )
    model = transformers.MarianMTModel(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed_positions" not in name:
                parameter.normal_(std=embedding_deviation if "shared" in name else 0.2)
            if "norm.weight" in name:
                parameter.add_(1)
        model.final_logits_bias.normal_(std=0.1)
    return model


def converted(marian):
    """Return a `Transformer` with the weights of a Marian model."""
    model = Transformer(
        source_vocab_size=VOCAB_SIZE, target_vocab_size=VOCAB_SIZE, d_model=D_MODEL, encoder_layers=LAYERS,
        decoder_layers=LAYERS + 1, num_heads=NUM_HEADS, feed_forward=FEED_FORWARD, activation="silu",
        max_positions=101, output_bias=True,
    )
    theirs = marian.state_dict()
    weights = {
        "target_embedding": theirs["model.shared.weight"][TO_MARIAN][:, ORDER],
        "output_bias": theirs["final_logits_bias"][0, TO_MARIAN],
    }

    def from_d_model(ours, *names):                                             # layers whose input is d_model
        weights[f"{ours}.weight"] = torch.cat([theirs[f"{name}.weight"] for name in names])[:, ORDER]
        weights[f"{ours}.bias"] = torch.cat([theirs[f"{name}.bias"] for name in names])

    def to_d_model(ours, name):                                                 # layers and norms that output d_model
        weights[f"{ours}.weight"] = theirs[f"{name}.weight"][ORDER]
        weights[f"{ours}.bias"] = theirs[f"{name}.bias"][ORDER]

    for side, layers in (("encoder", LAYERS), ("decoder", LAYERS + 1)):
        for number in range(layers):
            ours, name = f"{side}.{number}", f"model.{side}.layers.{number}"
            from_d_model(f"{ours}.self_attention.query_key_value", *(f"{name}.self_attn.{part}_proj" for part in "qkv"))
            to_d_model(f"{ours}.self_attention.output", f"{name}.self_attn.out_proj")
            to_d_model(f"{ours}.self_residual.norm", f"{name}.self_attn_layer_norm")
            from_d_model(f"{ours}.feed_forward.inner", f"{name}.fc1")
            to_d_model(f"{ours}.feed_forward.outer", f"{name}.fc2")
            to_d_model(f"{ours}.feed_forward_residual.norm", f"{name}.final_layer_norm")
            if side == "decoder":
                from_d_model(f"{ours}.cross_attention.query", f"{name}.encoder_attn.q_proj")
                from_d_model(f"{ours}.cross_attention.key_value",
                             *(f"{name}.encoder_attn.{part}_proj" for part in "kv"))
                to_d_model(f"{ours}.cross_attention.output", f"{name}.encoder_attn.out_proj")
                to_d_model(f"{ours}.cross_residual.norm", f"{name}.encoder_attn_layer_norm")
    assert set(weights) == {name for name, _ in model.named_parameters()}
    model.load_state_dict(weights, strict=False)
    return model.eval()


def random_sentences(lengths, seed=1):
    random = np.random.default_rng(seed)
    return [random.integers(END_ID + 1, VOCAB_SIZE, length).tolist() for length in lengths]


def for_marian(sentences):
    """Return Marian's ids with `</s>` and padding, and the mask of tokens that are not padding."""
    longest = max(map(len, sentences)) + 1
    ids = torch.full((len(sentences), longest), MARIAN_PAD)
    for row, sentence in enumerate(sentences):
        ids[row, : len(sentence) + 1] = TO_MARIAN[[*sentence, END_ID]]
    return ids, torch.arange(longest) <= torch.tensor([len(sentence) for sentence in sentences])[:, None]


@torch.no_grad()
@pytest.mark.parametrize("seed", [1, 2])
def test_logits_equal_those_of_marian(seed):
    marian = random_marian(seed)
    sources, targets = random_sentences((5, 2, 13, 7)), random_sentences((3, 11, 2, 1), seed=2)
    batch = gather(EncodedCorpus(EncodedSide.from_lists(sources), EncodedSide.from_lists(targets)), np.arange(4))
    ids, real = for_marian(sources)
    targets_ids, real_targets = for_marian(targets)
    decoder_ids = torch.cat([torch.full((4, 1), MARIAN_PAD), targets_ids[:, :-1]], dim=1)
    theirs = marian(input_ids=ids, attention_mask=real.long(), decoder_input_ids=decoder_ids).logits[real_targets]
    ours = converted(marian).forward(batch).dense()
    assert theirs.std() > 0.5
    torch.testing.assert_close(ours, theirs[:, TO_MARIAN], rtol=0, atol=1e-4)


MAX_LENGTH, BEAM_SIZE = 67, 4


def translated_by_marian(model, sources, length_penalty):
    """Return the hypotheses of each source, best first, as (Marian's ids with `</s>`, score)."""
    ids, real = for_marian(sources)
    output = model.generate(
        input_ids=ids, attention_mask=real.long(), num_beams=BEAM_SIZE, num_return_sequences=BEAM_SIZE,
        early_stopping=True, length_penalty=length_penalty, max_new_tokens=MAX_LENGTH,
        bad_words_ids=[[MARIAN_PAD], [MARIAN_UNKNOWN]], return_dict_in_generate=True, output_scores=True,
    )
    rows = [[token for token in row[1:].tolist() if token != MARIAN_PAD] for row in output.sequences]
    hypotheses = list(zip(rows, output.sequences_scores.tolist(), strict=True))
    return [hypotheses[begin : begin + BEAM_SIZE] for begin in range(0, len(hypotheses), BEAM_SIZE)]


def translated_by_us(model, sources, length_penalty):
    ids, offsets, _ = EncodedSide.from_lists(sources).gather(np.arange(len(sources)))
    found = search(
        on_host(model), ids, offsets, [MAX_LENGTH] * len(sources),
        SearchOptions(BEAM_SIZE, power_length_penalty(length_penalty), n_best=BEAM_SIZE,
                      banned_ids=[START_ID, UNKNOWN_ID]),
    )
    return [[(TO_MARIAN[[*hypothesis.tokens, END_ID]].tolist(), hypothesis.score) for hypothesis in best]
            for best in found]


@torch.no_grad()
@pytest.mark.parametrize("length_penalty", [1.0, 0.0])
def test_beam_search_equals_that_of_hugging_face(length_penalty):
    sources = random_sentences((5, 2, 13, 7, 3, 11, 17))
    compared, lengths = 0, set()
    for seed, end in [(1, 1.8), (2, 2.2), (3, 1.8)]:
        marian = random_marian(seed, embedding_deviation=0.2)
        marian.model.shared.weight[MARIAN_END] *= 0.2
        marian.final_logits_bias[0, MARIAN_END] += end
        pairs = zip(translated_by_us(converted(marian), sources, length_penalty),
                    translated_by_marian(marian, sources, length_penalty), strict=True)
        for ours, theirs in pairs:
            # A random model may repeat itself until the maximum length. There results differ: only this package's
            # search ends such hypotheses with </s>.
            if any(len(tokens) == MAX_LENGTH for tokens, _ in theirs):
                continue
            assert [tokens for tokens, _ in ours] == [tokens for tokens, _ in theirs]
            assert [score for _, score in ours] == pytest.approx([score for _, score in theirs], abs=1e-4)
            compared += 1
            lengths.update(len(tokens) for tokens, _ in ours)
    assert compared > 10 and len(lengths) > 5
