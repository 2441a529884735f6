"""XML in a text, as servers of translation take it (`tag_handling=xml` of DeepL): a document, or a fragment of one.

Parameters: https://developers.deepl.com/docs/xml-and-html-handling/structured-content
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from seq2seq.formats.block import Block
from seq2seq.formats.inline_tags import Tag, element_ends
from seq2seq.formats.runs import RunDocument, Token
from seq2seq.formats.tags_in_text import UNTRANSLATED
from seq2seq.formats.units import Unit
from seq2seq.formats.xml_tokens import XmlToken, decode_xml, escape_xml, xml_tokens

_CDATA, _CDATA_END = "<![CDATA[", "]]>"
SplitSentences = Literal["0", "1", "nonewlines"]


@dataclass(frozen=True)
class XmlOptions:
    """Treatment of elements, by their names. All elements without a rule are inline.

    splitting: elements whose texts are apart from the texts around them (`splitting_tags`). non_splitting: elements
    that are inline in spite of `outline`. ignored: elements whose contents are not translated (`ignore_tags`), as those
    with an attribute `translate="no"`.
    outline: True if the structure decides, too: the outermost elements with text of their own are splitting
    (`outline_detection`). split_sentences: "0": the text of an element is one sentence; "1": sentences end at
    punctuation and line feeds; "nonewlines": at punctuation.
    """

    splitting: frozenset[str] = frozenset()
    non_splitting: frozenset[str] = frozenset()
    ignored: frozenset[str] = frozenset()
    outline: bool = True
    split_sentences: SplitSentences = "1"

    def ignores(self, token: XmlToken) -> bool:
        return token.name in self.ignored or token.kind == "open" and UNTRANSLATED.search(token.raw) is not None


class XmlTextDocument(RunDocument):
    """XML document or fragment. A fragment can have several elements and texts side by side."""

    def __init__(self, data: bytes, options: XmlOptions = XmlOptions()) -> None:
        self._options = options
        super().__init__(data)

    def decode(self, data: bytes) -> tuple[str, str]:
        return decode_xml(data)

    def tokens(self) -> Iterable[Token]:
        text = self.text[self.begin:]
        is_document = text.lstrip().startswith(("<?xml", "<!DOCTYPE"))
        return _classified(xml_tokens(text, is_fragment=not is_document), self._options)

    def block(self, text: str, tags: tuple[Tag, ...], place: str) -> Block:
        option = self._options.split_sentences
        return Block(text, tags, place, split=option != "0", keeps_lines=option == "1")

    def write(self, unit: Unit, block: Block) -> str:
        if all(token.raw.startswith(_CDATA) for token in unit.info if token.text.strip()):
            return block.serialize(lambda text: text and _CDATA + text.replace(
                _CDATA_END, f"]]{_CDATA_END}{_CDATA}>").replace("\n", self.line_end) + _CDATA_END)
        return block.serialize(lambda text: escape_xml(text, self.line_end))


def _classified(tokens: Sequence[XmlToken], options: XmlOptions) -> Iterator[Token]:
    """Yield the tokens; those that separate texts have the kind "other". An ignored element is one token."""
    ends = element_ends((token.kind, token.name) for token in tokens)
    splitting = _splitting(tokens, ends, options)
    index = 0
    while index < len(tokens):
        token = tokens[index]
        last = ends.get(index, index) if options.ignores(token) else index
        raw = "".join(one.raw for one in tokens[index:last + 1])
        if token.kind == "text":
            yield Token("text", raw, "", token.text)
        elif index in splitting or token.kind == "other" and (raw.startswith("<?xml") or not raw.startswith("<?")):
            yield Token("other", raw)
        elif token.kind in ("open", "close") and last == index:
            yield Token(token.kind, raw, token.name)
        else:
            yield Token("alone", raw)
        index = last + 1


def _splitting(tokens: Sequence[XmlToken], ends: Mapping[int, int], options: XmlOptions) -> set[int]:
    """Return the indices of the tags that separate texts."""
    splitting = options.splitting - options.non_splitting
    texts = _elements_with_text(tokens, ends, options)
    found: set[int] = set()
    # (True if the tags separate texts, True if the text of an element around continues) of each open element
    stack = [(False, not options.outline or None in texts)]
    for index, token in enumerate(tokens):
        if token.kind in ("open", "alone"):
            continues = stack[-1][1]
            splits = token.name in splitting or not (continues or token.name in options.non_splitting)
            stack.append((splits, not options.outline or (index in texts if splits else continues)))
        if token.kind in ("open", "alone", "close") and stack[-1][0]:
            found.add(index)
        if token.kind in ("alone", "close"):
            stack.pop()
    return found


def _elements_with_text(tokens: Sequence[XmlToken], ends: Mapping[int, int], options: XmlOptions) -> set[int | None]:
    """Return the elements with text of their own, by the indices of their first tokens; None is the text outside of all
    elements. Text of a `non_splitting` element counts as text of the element around it."""
    found: set[int | None] = set()
    owners: list[int | None] = [None]
    ignored = -1                                                        # end of the ignored element
    for index, token in enumerate(tokens):
        if token.kind == "open":
            owners.append(owners[-1] if token.name in options.non_splitting else index)
            ignored = max(ignored, ends[index] if options.ignores(token) else -1)
        elif token.kind == "close":
            owners.pop()
        elif token.kind == "text" and index > ignored and token.text.strip():
            found.add(owners[-1])
    return found
