"""Extension of griffe: fields and parameters that a docstring describes in running text become a list.

The docstrings of this package write `text: detokenized text. score: number …` in one paragraph. Google's format of
docstrings, which griffe reads, knows only sections such as `Args:`.
"""

import re
from typing import Any

import griffe


class Fields(griffe.Extension):
    """Turns `name: meaning. name: meaning.` into a list, for the names that the class or function has."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Rewrite the docstring of a class or function."""
        if obj.docstring is None or not (obj.is_class or obj.is_function):
            return
        known = {*obj.members, *(each.name.lstrip("*") for each in getattr(obj, "parameters", ()))}
        name = "|".join(map(re.escape, sorted(known, key=len, reverse=True)))
        field = re.compile(rf"(?:^|(?<=[.;:)] ))((?:{name})(?:, (?:{name}))*): ")
        paragraphs = []
        for paragraph in obj.docstring.value.split("\n\n"):
            text = " ".join(paragraph.split())
            if known and field.search(text) and not re.match(r"\s|\w+:$", paragraph.split("\n")[0]):
                before, *found = field.split(text)
                items = [f"- `{names.replace(', ', '`, `')}`: {meaning.strip()}"
                         for names, meaning in zip(found[::2], found[1::2], strict=True)]
                paragraph = "\n\n".join(filter(None, [before.strip(), "\n".join(items)]))
            paragraphs.append(paragraph)
        obj.docstring.value = "\n\n".join(paragraphs)
