"""How deep are the loops of a CEL expression?  What is bound in one may be larger than what it is made of.

The runtime bounds the steps of an expression and not what its values take: ten loops that each bind `[a+a+a]` are a few
hundred characters, and more memory than there is.  So an expression with too many within each other is refused before
it is compiled.  Too deep is told of some that are not (a loop behind a field of another's result).
"""

from __future__ import annotations

import re

# As CEL reads them: https://github.com/google/cel-spec/blob/master/doc/langdef.md#syntax
_STRINGS_AND_COMMENTS = re.compile(
    r"""//[^\n]*
    |\b[bB]?[rR][bB]?(?:\"{3}.*?\"{3}|'{3}.*?'{3}|"[^"\n]*"|'[^'\n]*')
    |\"{3}(?:\\.|[^\\])*?\"{3}|'{3}(?:\\.|[^\\])*?'{3}
    |"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'""",
    re.VERBOSE | re.DOTALL,
)
_TOKENS = re.compile(
    r"\.\s*(?P<loop>all|exists|exists_?[oO]ne|filter|map|transform\w+|opt(?:Flat)?Map)\s*\(|(?P<opens>[\[({])|[\])}]"
)
_OF_IT = re.compile(r"[\w.\s]*")


def code_of(expression: str) -> str:
    """Without comments, and strings empty."""
    return _STRINGS_AND_COMMENTS.sub(lambda match: " " if match[0].startswith("//") else '""', expression)


def depth_of_loops(expression: str) -> int:
    """Of loops within each other's bodies or over each other's results; 0 without any."""
    code = code_of(expression)
    bodies = [(0, 0)]  # of what is open: how deep its beginning is, and the deepest in it
    ended, end = 0, 0  # the deepest of what was closed last, and where
    for token in _TOKENS.finditer(code):
        within = bodies[-1][0]
        continues = _OF_IT.fullmatch(code, end, token.start()) is not None
        if token["loop"]:
            depth = max(within, ended if continues else 0) + 1
            bodies.append((depth, depth))
        elif token["opens"]:
            bodies.append((within, max(within, ended if continues else 0)))
        elif len(bodies) > 1:
            _, ended = bodies.pop()
            end = token.end()
            bodies[-1] = (bodies[-1][0], max(bodies[-1][1], ended))
    return max(deepest for _, deepest in bodies)
