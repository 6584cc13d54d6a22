"""The source in a completion: its LAST fenced Python block.

The last block wins because a model that thinks aloud drafts first and answers last. A fence is a line that starts with
three or more backticks; the opening line may carry a language, and only `python`, `py`, `python3` or nothing counts (a
block of sample output is not an answer). A block that never closes runs to the end of the text: a completion cut by the
token limit is graded on what it holds.
"""

import re

# Possessive: a line of n characters takes O(n), where backtracking would take O(n^2) on a hostile one.
_FENCE = re.compile(r"^[ \t]*+(?P<ticks>`{3,}+)[ \t]*+(?P<language>[^`\s]*+)[^`\n]*+$")
_LANGUAGES = frozenset({"", "python", "py", "python3"})


def extract_source(completion: str) -> str | None:
    """The text of the last fenced Python block, or None when the completion holds none (`fmt_ok` is False)."""
    source: str | None = None
    ticks, language, body = "", "", []
    for line in [*completion.split("\n"), None]:
        fence = _FENCE.match(line) if line is not None else None
        if not ticks:
            if fence:
                ticks, language, body = fence["ticks"], fence["language"].lower(), []
        elif line is None or (fence and not fence["language"] and len(fence["ticks"]) >= len(ticks)):
            if language in _LANGUAGES:
                source = "\n".join(body)
            ticks = ""
        else:
            body.append(line)
    return source
