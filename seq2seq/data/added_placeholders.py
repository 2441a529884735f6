"""Placeholders of software texts, such as {name} and %s, on both sides of a pair. The model learns to copy them."""

from __future__ import annotations

import re
from collections import Counter
from random import Random

from seq2seq.data.modifiers import SentencePair, Texts
from seq2seq.languages import combining_marks

# A number, or a word of letters that are not Chinese or Japanese: 用Python写 has the word Python. Combining marks,
# such as accents in NFD text, belong to their letters.
TOKEN = re.compile(rf"\d+(?:[.,:]\d+)*|(?:[^\W\d_\u2e80-\u9fff\uf900-\ufaff][{combining_marks()}]*){{2,}}")
NAMES = ("name", "user", "count", "n", "x", "value", "file", "path", "title", "date", "time", "id", "total", "item",
         "page", "url", "size", "email", "app", "version", "number", "userName", "file_name", "min", "max", "host")
FORMS = ("{{{name}}}", "{{{number}}}", "{{{{ {name} }}}}", "{{{{{name}}}}}", "${{{name}}}", "%s", "%d", "%@", "%i",
         "%{position}$s", "%({name})s", "%({name})d", "%{{{name}}}", "%{name}%", "<{name}>", ":{name}", "@{name}",
         "$" "{name}", "[{name}]", "#{{{name}}}", "__{name}__", "{{{name}:.2f}}", "%.1f", "&{name};", "[[{name}]]")


def placeholders(pair: SentencePair, random: Random) -> Texts:
    """Replace a name or number that occurs once on each side by a placeholder. If no name or number does, add the
    placeholder at the beginning or at the end of both sides."""
    placeholder = drawn_placeholder(random)
    counts = [Counter(TOKEN.findall(text)) for text in pair.texts]
    shared = [token for token, count in counts[0].items()
              if count == counts[1][token] == 1 and (token[0].isdigit() or token[0].isupper())]
    if shared:
        token = random.choice(shared)
        source, target = (_replaced(text, token, placeholder) for text in pair.texts)
        return source, target
    form = random.choice(("{placeholder} {text}", "{text} {placeholder}"))
    return (form.format(placeholder=placeholder, text=pair.source),
            form.format(placeholder=placeholder, text=pair.target))


def drawn_placeholder(random: Random) -> str:
    """Return a random placeholder."""
    form, name = random.choice(FORMS), random.choice(NAMES)
    if random.random() < 0.1:
        name = name.upper()
    number = random.randrange(10)
    return form.format(name=name, number=number, position=1 + number % 4)


def _replaced(text: str, token: str, placeholder: str) -> str:
    span = next(match.span() for match in TOKEN.finditer(text) if match[0] == token)
    return text[:span[0]] + placeholder + text[span[1]:]
