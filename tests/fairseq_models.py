"""Random M2M-100, NLLB-200 and mBART-50 models in Hugging Face format, with files as on the hub."""

import base64
import json
from pathlib import Path
from random import Random

import sentencepiece
import torch

LINES = [
    "ein Hund läuft im Garten", "die Katze schläft im Haus und der Hund bellt", "zwei Kinder lachen laut",
    "the dog runs through the garden", "a cat sleeps in the house, and the dog barks", "two children laugh",
    "собака бежит по саду", "кошка спит в доме", "狗在花园里跑", "猫在房子里睡觉，狗在叫", "الكلب يجري في الحديقة",
    "القطة تنام في البيت", "कुत्ता बगीचे में दौड़ता है", "बिल्ली घर में सोती है", "ο σκύλος τρέχει στον κήπο",
    "η γάτα κοιμάται στο σπίτι"]
NLLB_LANGUAGES = ["ace_Arab", "arb_Arab", "deu_Latn", "ell_Grek", "eng_Latn", "hin_Deva", "rus_Cyrl", "zho_Hans",
                  "zho_Hant"]


def mixed_lines(number: int) -> list[str]:
    """Return lines of words of six scripts in random order, with spaces, numbers and unknown characters."""
    random = Random(1)
    words = [word for line in LINES for word in line.split()] + ["12", "3,5", "%", "(x)", "ＨＵＮＤ", "☃", "e\u0301"]
    return [random.choice([" ", "  "]).join(random.choices(words, k=random.randint(1, 17))) for _ in range(number)]


def train_sentencepiece(path: Path, model_type: str = "bpe") -> None:
    with open(path, "wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(LINES * 3), model_writer=file, model_type=model_type, vocab_size=260, minloglevel=2,
            num_threads=1, character_coverage=1.0, hard_vocab_limit=False)


def write_nllb_tokenizer(folder: Path):
    """Write the files of an NLLB tokenizer: its language tokens follow the pieces, and `<mask>` follows them."""
    import transformers

    train_sentencepiece(folder / "sentencepiece.bpe.model")
    read = json.loads(transformers.NllbTokenizer.from_pretrained(folder).backend_tokenizer.to_str())
    backend, charsmap = read["model"], read["normalizer"]["normalizers"][0]["precompiled_charsmap"]
    vocab = {piece: index for piece, index in backend["vocab"].items() if piece not in (*NLLB_LANGUAGES, "<mask>")}
    for token in (*NLLB_LANGUAGES, "<mask>"):
        vocab[token] = len(vocab)
    tokenizer = transformers.NllbTokenizer(
        vocab=vocab, merges=[tuple(merge) for merge in backend["merges"]], extra_special_tokens=NLLB_LANGUAGES,
        _spm_precompiled_charsmap=base64.b64decode(charsmap), src_lang="eng_Latn", tgt_lang="deu_Latn")
    tokenizer.save_pretrained(folder)
    return tokenizer


def write_m2m100_tokenizer(folder: Path):
    """Write the files of an M2M-100 tokenizer, whose ids have another order than those of sentencepiece."""
    import transformers

    train_sentencepiece(folder / "sentencepiece.bpe.model")
    processor = sentencepiece.SentencePieceProcessor(str(folder / "sentencepiece.bpe.model"))
    pieces = [processor.id_to_piece(index) for index in range(3, processor.vocab_size())]
    names = ["<s>", "<pad>", "</s>", "<unk>", *sorted(pieces)]
    (folder / "vocab.json").write_text(json.dumps({name: index for index, name in enumerate(names)}))
    tokenizer = transformers.M2M100Tokenizer.from_pretrained(folder, src_lang="en", tgt_lang="de")
    tokenizer.save_pretrained(folder)
    return tokenizer


def write_mbart50_tokenizer(folder: Path):
    """Write the files of an mBART-50 tokenizer: 52 language tokens follow the pieces, and `<mask>` follows them."""
    import transformers

    train_sentencepiece(folder / "sentencepiece.bpe.model", "unigram")
    tokenizer = transformers.MBart50Tokenizer.from_pretrained(folder, src_lang="en_XX", tgt_lang="de_DE")
    tokenizer.save_pretrained(folder)
    return tokenizer


TOKENIZERS = {"nllb": write_nllb_tokenizer, "m2m100": write_m2m100_tokenizer, "mbart50": write_mbart50_tokenizer}


def make(folder: Path, *, kind: str = "nllb", d_model: int = 22, heads: int = 11, layers: tuple[int, int] = (2, 3),
         feed_forward: int = 37, tied: bool = True, activation: str = "relu", scale: bool = True, seed: int = 1,
         unused: int = 2, end: float = 2.0):
    """Write a random model; return it and its tokenizer. end: added to the logit of `</s>`, so that translations end.
    """
    import transformers

    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = TOKENIZERS[kind](folder)
    added = max([len(tokenizer), *(getattr(tokenizer, "lang_code_to_id", None) or {"": 0}).values()])
    torch.manual_seed(seed)
    architecture = "MBart" if kind == "mbart50" else "M2M100"
    config = getattr(transformers, f"{architecture}Config")(
        vocab_size=added + 1 + unused, d_model=d_model, encoder_layers=layers[0], decoder_layers=layers[1],
        encoder_attention_heads=heads, decoder_attention_heads=heads, encoder_ffn_dim=feed_forward,
        decoder_ffn_dim=feed_forward, activation_function=activation, scale_embedding=scale,
        max_position_embeddings=101, tie_word_embeddings=tied, attn_implementation="eager",
        decoder_start_token_id=2)
    model = getattr(transformers, f"{architecture}ForConditionalGeneration")(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            is_embedding = any(part in name for part in ("shared", "embed_tokens", "lm_head"))
            # Small embeddings and large layers, so that a random model does not repeat its last token.
            parameter.normal_(std=0.15 if is_embedding else 0.5)
            if "norm.weight" in name:
                parameter.add_(1)
        bias = model.model.decoder.layer_norm.bias.mul_(0.4)
        if kind == "mbart50" and not tied:
            model.final_logits_bias.normal_(std=0.3)
        model.lm_head.weight[2] += end * bias / bias.square().sum()
    model.generation_config = transformers.GenerationConfig(
        num_beams=5, length_penalty=1.0, max_length=31, eos_token_id=2, pad_token_id=1, bos_token_id=0,
        decoder_start_token_id=2, early_stopping=True, bad_words_ids=[[index] for index in (0, 1, 3)])
    model.save_pretrained(folder)
    return model, tokenizer
