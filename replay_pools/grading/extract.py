"""The source code in a completion, by one of two rules:

joined   all blocks that the published LeetCode benchmark takes for code, joined by a blank line. Labels that are to be
         compared with published ones need this rule, so it is the default. A definition in a later block replaces an
         earlier one, as in any Python file; a block that is not Python spoils the whole.
last     the last Python block alone. It suits a model that writes drafts first and its answer last, and turns a right
         answer with an example of its use behind it into a wrong one.

Labels depend on the rule, so every pool records it. Under both rules a block that is never closed runs to the end of
the text, so that a completion cut by the token limit is graded on what it holds.
"""

import re
from collections.abc import Callable

from replay_pools.rollout import CodeRule

# Word for word the benchmark's, with its oddities: of all names only `python` opens a block, and the closing fence of a
# block with any other name is read as an opening one.
_BENCHMARK_BLOCK = re.compile(r"```(?:python)?\n(.*?)(?:```|$)", re.DOTALL | re.IGNORECASE)
# The quantifiers are possessive (*+): a hostile line of n characters takes O(n), and with backtracking O(n^2).
_FENCE = re.compile(r"^[ \t]*+(?P<ticks>`{3,}+)[ \t]*+(?P<language>[^`\s]*+)[^`\n]*+$")
_LANGUAGES = frozenset({"", "python", "py", "python3"})


def extract_source(completion: str, rule: CodeRule) -> str | None:
    """The source by `rule`; None when there is no block of code (the label `fmt_ok` is then False)."""
    return _EXTRACT[rule](completion)


def _joined(completion: str) -> str | None:
    """All blocks, each stripped, without empty ones."""
    blocks = [block.strip() for block in _BENCHMARK_BLOCK.findall(completion)]
    return "\n\n".join(filter(None, blocks)) or None


def _last(completion: str) -> str | None:
    """The last block between lines that start with three or more backticks and name Python, or nothing."""
    source: str | None = None
    ticks, language, body = "", "", []  # of the open block; no ticks outside of blocks
    for line in completion.split("\n"):
        fence = _FENCE.match(line)
        if not ticks:
            if fence:
                ticks, language, body = fence["ticks"], fence["language"].lower(), []
        elif fence and not fence["language"] and len(fence["ticks"]) >= len(ticks):
            if language in _LANGUAGES:
                source = "\n".join(body)
            ticks = ""
        else:
            body.append(line)
    if ticks and language in _LANGUAGES:
        return "\n".join(body)
    return source


_EXTRACT: dict[CodeRule, Callable[[str], str | None]] = {"joined": _joined, "last": _last}
