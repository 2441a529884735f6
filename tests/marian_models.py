"""Random Marian models in Hugging Face format with the properties of OPUS-MT models: two sentencepiece models without
byte pieces, a vocabulary file with its own ids, language tokens, `<pad>` as last id and as decoder start symbol."""

import io
import json

import sentencepiece
import torch

GERMAN = ["ein Hund läuft", "eine Katze schläft", "der Hund schläft", "die Katze läuft im Haus", "zwei Hunde laufen",
          "die Kinder laufen im Garten und lachen laut"]
ENGLISH = ["a dog runs", "a cat sleeps", "the dog sleeps", "the cat runs in the house", "two dogs are running",
           "the children are running through the garden and laughing loudly"]
LINES = [*GERMAN, "der Hund und die Katze", "ein Hund, eine Katze?", "läuft läuft läuft im Garten", "Kinder"]


def sentencepiece_model(lines, vocab_size):
    writer = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=writer, model_type="unigram", vocab_size=vocab_size,
        minloglevel=2, num_threads=1, hard_vocab_limit=False)
    return writer.getvalue()


def pieces_of(model):
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    return [processor.id_to_piece(index) for index in range(processor.vocab_size())]


def marian_vocabulary(*lists, language_tokens=()):
    """Number pieces as Marian does: `</s>` is 0, `<unk>` 1, `<pad>` the last id."""
    pieces = sorted({piece for pieces in lists for piece in pieces if piece not in ("<s>", "</s>", "<unk>")})
    names = dict.fromkeys(["</s>", "<unk>", *language_tokens, *pieces, "<pad>"])
    return {name: index for index, name in enumerate(names)}


def make(directory, *, separate=False, tied=True, shared=None, languages=(), activation="swish", d_model=22, heads=11,
         feed_forward=53, layers=(2, 3), seed=1, end=2.0, pickled=False, codes=("de", "en"), positions=67,
         generation=None):
    """Write a random model and return it. end: bias of `</s>`, large enough that translations end."""
    import transformers

    directory.mkdir(parents=True, exist_ok=True)
    models = [sentencepiece_model(GERMAN, 61), sentencepiece_model(ENGLISH, 53)]
    if separate:
        vocabularies = [marian_vocabulary(pieces_of(models[0]), language_tokens=languages),
                        marian_vocabulary(pieces_of(models[1]))]
    else:
        vocabularies = [marian_vocabulary(*map(pieces_of, models), language_tokens=languages)] * 2
    for name, model in zip(("source.spm", "target.spm"), models, strict=True):
        (directory / name).write_bytes(model)
    for name, vocabulary in zip(("vocab.json", "target_vocab.json")[: 1 + separate], vocabularies, strict=False):
        (directory / name).write_text(json.dumps(vocabulary))
    tokenizer_config = {"source_lang": codes[0], "target_lang": codes[1], "separate_vocabs": separate,
                        "tokenizer_class": "MarianTokenizer", "model_max_length": positions}
    (directory / "tokenizer_config.json").write_text(json.dumps(tokenizer_config))
    torch.manual_seed(seed)
    pad = vocabularies[1]["<pad>"]
    shared = (not separate) if shared is None else shared
    config = transformers.MarianConfig(
        vocab_size=len(vocabularies[0]), decoder_vocab_size=len(vocabularies[1]), d_model=d_model,
        encoder_layers=layers[0], decoder_layers=layers[1], encoder_attention_heads=heads,
        decoder_attention_heads=heads, encoder_ffn_dim=feed_forward, decoder_ffn_dim=feed_forward,
        activation_function=activation, scale_embedding=True, max_position_embeddings=positions, eos_token_id=0,
        pad_token_id=pad, decoder_start_token_id=pad, forced_eos_token_id=0, attn_implementation="eager",
        share_encoder_decoder_embeddings=shared, tie_word_embeddings=tied)
    model = transformers.MarianMTModel(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed_positions" not in name:
                parameter.normal_(std=0.2)
            if "norm.weight" in name:
                parameter.add_(1)
        model.final_logits_bias.normal_(std=0.1)
        model.final_logits_bias[0, 0] += end
        model.lm_head.weight[0] *= 0.2
    model.generation_config = transformers.GenerationConfig(
        num_beams=4, length_penalty=1.0, max_length=41, bad_words_ids=[[pad], [1]], eos_token_id=0, pad_token_id=pad,
        decoder_start_token_id=pad, forced_eos_token_id=0, early_stopping=True, **(generation or {}))
    model.save_pretrained(directory)
    if pickled:
        torch.save(model.state_dict(), directory / "pytorch_model.bin")
        (directory / "model.safetensors").unlink()
    return model


def tokenizer_of(directory):
    import transformers

    return transformers.MarianTokenizer.from_pretrained(directory)
