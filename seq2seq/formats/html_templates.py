"""Template code in HTML: Jinja, Django, Twig and Liquid; Handlebars, Go, Vue and Angular; ERB, EJS and JSP; PHP, Blade.

Code that only writes a value, such as `{{ name }}`, stands inside of a sentence. Code that decides what is shown, such
as `{% if %}`, must not move, so it separates texts.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple


class Code(NamedTuple):
    """Template code. kind: of its `runs.Token`."""

    begin: int
    end: int
    kind: Literal["value", "alone", "other"]


def _between(begin: str, end: str, stop: str = "</|-->") -> str:
    """Return the pattern of code. Another beginning before its end is excluded, so that a search takes linear time."""
    return f"{begin}(?:(?!{begin}|{end}|{stop}).)*+{end}"


_STATEMENT = "|".join([
    _between(r"\{%", r"%\}", "</(?:code|pre|script|style)|-->"), _between("<%", "%>", "<%"),
    r"<\?php\b(?:(?!\?>).)*+(?:\?>|\Z)", _between(r"<\?", r"\?>", r"<\?"), _between(r"\{\{(?:[#/^]|else\b)", r"\}\}")])
_CODE = [
    # An ending that depends on a condition, such as the s in dog{% if n > 1 %}s{% endif %}.
    r"(?P<ending>(?<=[^\W\d_])(?=(?:\{%-?|<%-?|<\?php|\{\{~?#)\s*+if\b)"
    rf"(?:{_STATEMENT})\w{{1,4}}(?:(?:{_STATEMENT})\w{{1,4}})?(?:{_STATEMENT}))",
    # Contents that are no text.
    r"(?P<literal>\{%-?\s*+(?P<name>comment|highlight|codeblock|schema|javascript|stylesheet)\b"
    r"(?:(?!\{%-?\s*+(?:end)?(?P=name)\b|</code).)*+\{%-?\s*+end(?P=name)\s*+-?%\})",
    _between(r"\{\{!--", r"--\}\}", r"\{\{!--"), _STATEMENT, _between(r"\{\{\{?", r"\}\}\}?"), _between(r"\{#", r"#\}"),
    _between(r"\{!!", r"!!\}"),
    # Formulas of MathJax.
    _between(r"\\\(", r"\\\)"), _between(r"\\\[", r"\\\]"), r"\$\$(?=[^$<]*+[$]{2})(?=[^$<]*?[\\^_={])[^$<]++\$\$"]
_ARGUMENTS = r"[ \t]*+\((?:[^()]|\((?:[^()]|\([^()]*+\))*+\)){0,1000}+\)"
_ANGULAR = (r"(?P<angular>(?:[}]\s*+)?@(?:if|else(?:[ ]if)?|for|empty|switch|case|default|defer|placeholder|loading|"
            rf"error)\b(?:{_ARGUMENTS})?\s*+[{{])")
_BLADE = (r"(?P<blade>(?<![\w@])@(?:if|else|elseif|end[a-z]+|unless|isset|empty|auth|guest|can|section|yield|show|"
          r"parent|stop|extends|include\w*|push|stack|for|foreach|forelse|while|switch|case|break|default|csrf|method|"
          rf"component|slot|error|once|props|php|verbatim|vite)\b(?:{_ARGUMENTS})?)")
_IS_BLADE = re.compile(r"@(?:end(?:if|for|foreach|forelse|section|unless|push|auth|guest)\b|(?:extends|section)\()")
_NAME = re.compile(r"\{%[-+~]?\s*+(\w*+)")
# Names of tags that decide what is shown. So do the tags that have an end, such as `{% x %}…{% endx %}`.
_CONTROL_LIST = """
autoescape block case default elif else elseif elsif empty for if intermediate plural pluralize unless when while with
"""
_CONTROL = frozenset(_CONTROL_LIST.split())
_CONTROL_CODE = re.compile(
    # Handlebars and Go
    r"\{\{[-~]?\s*+(?:[#/^]|(?:else|end)\b|(?:if|range|with|define|block)\s+[\w.$\"(-])"
    # ERB, EJS, JSP: all but values, comments, and `<%- x %>` of EJS
    r"|<%(?![=#~]|--|-(?!\s*+(?:if|else|elsif|end|for|while|unless|case|when|[{}])|[^%]*+-%>))"
    r"|<%.*(?:\bdo(?:\s*+\|[^|]*+\|)?|[{])\s*+-?%>\Z"
    # PHP
    r"|<\?(?:php)?\s*+(?:[}]|end\w+|else|case\b|default\b|break\b)|<\?.*[{}:]\s*+\?>\Z", re.DOTALL)
_VALUE = re.compile(r"\{\{(?![#/^>!~-])|\{!!|<%[=~-]|<\?(?:=|php\s++(?:echo|print|printf|_e|esc_\w+|the_\w+)\b)")


def find_code(source: str) -> list[Code]:
    """Return the template code of HTML, in order and without overlaps. Code in comments and scripts may be among it."""
    patterns = _CODE[:]
    if re.search(_ANGULAR, source):
        patterns += [_ANGULAR, r"(?P<angular_end>[}](?=\s*+(?:<|@|[}]|\Z)))"]
    if _IS_BLADE.search(source):
        patterns.append(_BLADE)
    paired = _CONTROL | set(re.findall(r"\{%[-+~]?\s*+end_?+(\w++)", source))
    return [Code(*match.span(), _kind(match, paired))
            for match in re.finditer("|".join(patterns), source, re.DOTALL)]


def _kind(match: re.Match[str], paired: frozenset[str] | set[str]) -> Literal["value", "alone", "other"]:
    code, source = match[0], match.string
    if match["ending"]:
        return "alone"
    name = _NAME.match(code)
    if name and (name[1] in paired or name[1].startswith("end")) or _CONTROL_CODE.match(code) or code[0] in "@}":
        return "other"
    if not _VALUE.match(code):
        before, after = source[max(0, match.start() - 200):match.start()], source[match.end():match.end() + 200]
        is_line = not before.rpartition("\n")[2].strip() and not after.partition("\n")[0].strip()
        return "other" if is_line else "alone"
    # Characters that HTML escapes would be changed in a text.
    return "value" if code.startswith("{{") and not re.search("[<>&]", code) else "alone"
