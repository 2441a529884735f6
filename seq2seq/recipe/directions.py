"""Several directions in one model: each source begins with a token of its target language, such as `>>de<<`.

The method is from Johnson et al. 2017 (arXiv:1611.04558). The tokens have the same form as in the OPUS-MT models.
"""

from typing import Any

from seq2seq.recipe.base_section import SectionsError, collecting, refuse_if
from seq2seq.recipe.data_section import Corpus, Data, Languages
from seq2seq.recipe.task import TRANSLATION


def language_token(code: str) -> str:
    """Return the token of a target language."""
    return f">>{code}<<"


def language_tokens(data: Data, languages: Languages) -> list[str]:
    """Return the tokens of the target languages of the training corpora; [] if there is only one target language."""
    targets = list(dict.fromkeys(direction.target for direction in directions_of(data, languages)))
    return [language_token(target) for target in targets] if len(targets) > 1 else []


def directions_of(data: Data, languages: Languages) -> tuple[Languages, ...]:
    """Return the distinct directions of the training corpora. If `languages` is one of them, it is first."""
    found = dict.fromkeys((corpus.languages or languages).pair_or_text for corpus in data.train)
    ordered = sorted(found, key=lambda pair: pair != languages.pair_or_text)
    return tuple(Languages(source=source, target=target) for source, target in ordered)


def with_language_tokens(recipe: dict[str, Any]) -> dict[str, Any]:
    """Return an unvalidated recipe with language tokens as tags: if the training corpora have several target languages,
    every corpus without a tag gets the token of its target language."""
    data = recipe.get("data")
    train = data.get("train") if isinstance(data, dict) else None
    if not isinstance(data, dict) or not isinstance(train, list | tuple):
        return recipe

    def target(corpus: Any) -> Any:
        own = corpus.get("languages") if isinstance(corpus, dict) else None
        languages = own if isinstance(own, dict) else recipe.get("languages")
        return languages.get("target") if isinstance(languages, dict) else None

    targets = [target(corpus) for corpus in train]
    if not all(isinstance(each, str) for each in targets) or len(set(targets)) < 2:
        return recipe

    def tagged(corpus: Any) -> Any:
        if isinstance(corpus, list | tuple):
            return [tagged(each) for each in corpus]
        if not isinstance(corpus, dict) or corpus.get("tag") is not None:
            return corpus
        return {**corpus, "tag": language_token(str(target(corpus)))}

    test = data.get("test")
    return recipe | {"data": data | {
        "train": tagged(train), **({"valid": tagged(data["valid"])} if "valid" in data else {}),
        **({"test": {name: tagged(corpus) for name, corpus in test.items()}} if isinstance(test, dict) else {})}}


def check_directions(recipe: Any, errors: list[SectionsError]) -> None:
    """Append an error for each corpus whose languages or tag do not fit the other keys, and for `languages`. recipe: a
    `Recipe`."""
    data, languages, task = recipe.data, recipe.languages, recipe.task
    tokens = language_tokens(data, languages)

    def check(key: tuple[str | int, ...], corpus: Corpus) -> None:
        refuse_if(corpus.languages and (task is not TRANSLATION or corpus.languages.source is None),
                  ("data", *key, "languages"), "only corpora of a translation model can have `languages`; give "
                  "both source and target")
        token = language_token((corpus.languages or languages).target)
        refuse_if(tokens and token not in tokens, ("data", *key), f"no training corpus has the target language of "
                  f"{token}")
        refuse_if(tokens and not (corpus.tag or "").startswith(token), ("data", *key, "tag"), "the training corpora "
                  f"have several target languages, so that the tag must begin with the language token {token}")

    for key, corpus in data.corpora_with_keys():
        with collecting(errors):
            check(key, corpus)
    with collecting(errors):
        refuse_if(tokens and language_token(languages.target) not in tokens, "languages.target",
                  f"no training corpus has this target language; the corpora have the tokens {' and '.join(tokens)}")
