"""Random T5, mT5 and MADLAD-400 models in Hugging Face format, with files as on the hub."""

from pathlib import Path

import sentencepiece
import torch

from tests.fairseq_models import LINES

LANGUAGE_TOKENS = ("<2de>", "<2en>", "<2zh_Hant>")
SYMBOLS = {"t5": {"pad_id": 0, "eos_id": 1, "unk_id": 2}, "madlad": {"unk_id": 0, "pad_id": 1, "eos_id": 2}}
"""Ids of the symbols. In MADLAD-400, the padding is <s>, and the decoder starts with <unk>."""


def write_tokenizer(folder: Path, kind: str, languages: bool):
    import transformers

    pad = "<s>" if kind == "madlad" else "<pad>"
    with open(folder / "spiece.model", "wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(LINES * 3), model_writer=file, model_type="unigram", vocab_size=260, minloglevel=2,
            num_threads=1, character_coverage=1.0, hard_vocab_limit=False, bos_id=-1, pad_piece=pad,
            user_defined_symbols=list(LANGUAGE_TOKENS) if languages else [], **SYMBOLS[kind])
    model = (folder / "spiece.model").read_bytes()
    for token in LANGUAGE_TOKENS if languages else ():
        # Ordinary pieces, which stand behind the space before the text: field 3, the type, is 1 instead of 4.
        piece = b"\x0a" + bytes([len(token)]) + token.encode() + b"\x15\0\0\0\0\x18"
        assert model.count(piece + b"\x04") == 1
        model = model.replace(piece + b"\x04", piece + b"\x01")
    (folder / "spiece.model").write_bytes(model)
    tokenizer = transformers.T5Tokenizer.from_pretrained(folder, pad_token=pad, extra_ids=0 if kind == "madlad" else 7)
    tokenizer.save_pretrained(folder)
    return tokenizer


def make(folder: Path, *, architecture: str = "T5", kind: str = "t5", languages: bool = False, own_output: bool = False,
         scaled: bool = False, d_model: int = 22, heads: int = 3, head_size: int = 5, layers: tuple[int, int] = (3, 2),
         feed_forward: int = 37, projection: str = "gated-gelu", unused: int = 2, seed: int = 1, end: float = 1.0,
         deviation: float = 0.3):
    """Write a random model; return it and its tokenizer. end: factor of the output of `</s>`. deviation: of weights.
    layers: transformers cannot generate with more layers in the decoder than in the encoder."""
    import transformers

    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = write_tokenizer(folder, kind, languages)
    torch.manual_seed(seed)
    symbols = SYMBOLS[kind]
    config = getattr(transformers, f"{architecture}Config")(
        vocab_size=len(tokenizer) + unused, d_model=d_model, d_kv=head_size, d_ff=feed_forward, num_layers=layers[0],
        num_decoder_layers=layers[1], num_heads=heads, feed_forward_proj=projection, tie_word_embeddings=scaled,
        pad_token_id=symbols["pad_id"], eos_token_id=symbols["eos_id"],
        decoder_start_token_id=symbols["unk_id" if kind == "madlad" else "pad_id"], attn_implementation="eager")
    model = getattr(transformers, f"{architecture}ForConditionalGeneration")(config).eval()
    if own_output:
        model.lm_head.weight = torch.nn.Parameter(torch.empty_like(model.lm_head.weight))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            is_large = "relative" in name or "shared" in name and (own_output or scaled)
            parameter.normal_(std=1.0 if is_large else deviation)
            if "layer_norm" in name:
                parameter.add_(1)
        if own_output:
            model.lm_head.weight[symbols["eos_id"]] *= end
        else:
            model.shared.weight[symbols["eos_id"]] *= end
    model.generation_config = transformers.GenerationConfig(
        num_beams=5, length_penalty=1.0, max_length=31, eos_token_id=symbols["eos_id"], pad_token_id=symbols["pad_id"],
        decoder_start_token_id=config.decoder_start_token_id, early_stopping=True)
    model.save_pretrained(folder)
    return model, tokenizer
