"""The source code in a completion: its LAST fenced Python block.

The last block counts because a model that reasons aloud writes drafts first and its answer last. A fence is a line that
starts with three or more backticks. The opening line may name a language; only `python`, `py`, `python3` or no name
count, because a block of sample output is not an answer. A block that is never closed runs to the end of the text, so
that a completion cut by the token limit is graded on what it holds.
"""

import re

# The quantifiers are possessive (*+): a hostile line of n characters takes O(n), and with backtracking O(n^2).
_FENCE = re.compile(r"^[ \t]*+(?P<ticks>`{3,}+)[ \t]*+(?P<language>[^`\s]*+)[^`\n]*+$")
_LANGUAGES = frozenset({"", "python", "py", "python3"})


def extract_source(completion: str) -> str | None:
    """The text of the last fenced Python block; None when there is none (the label `fmt_ok` is then False)."""
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
