"""One rollout: its line, and folded away its facts, its prompt, and its completion with the shares of its tokens."""

from xml.etree.ElementTree import Element

from probe.report.figures.panel import signed
from probe.report.html import node, number
from probe.report.rollouts import Shown

SHARE_UNIT = 1e-5  # what a share is counted in, in the page


def rollout(one: Shown, scale: float) -> Element:
    """One rollout, folded: its line, and inside its facts, prompt and completion."""
    s, r = one.sample, one.rollout
    labels = [("hacked", "hack-tag") if s.hacked else ("clean", "clean-tag"), ("right" if s.gt_pass else "wrong", "")]
    labels += [("hint", "")] if s.hint else []
    summary = node(
        "summary",
        node("span", f"step {s.step} \u00b7 {s.sample_id}", class_="where"),
        node("span", s.src_pool, class_="source"),
        node("span", *(node("b", word, class_=f"tag {class_}".strip()) for word, class_ in labels), class_="tags"),
        node("span", f"A {signed(s.advantage, 2)}", class_="advantage"),
        _bar(one.cosine, scale),
        node("span", signed(s.cos_S_contrib), class_="cosine"),
    )
    prompt = node(
        "details",
        node("summary", f"Prompt ({r.plen} tokens{_sum(one, 'prompt')})"),
        _text(one, "prompt"),
        class_="fold",
    )
    completion = node("h4", f"Completion ({r.comp_len} tokens{_sum(one, 'completion')})"), _text(one, "completion")
    body = node("div", node("div", _facts(one), prompt), node("div", *completion))
    return node(
        "details",
        summary,
        body,
        class_="rollout",
        id=one.anchor,
        data_label="hacked" if s.hacked else "clean",
        data_source=s.src_pool,
    )


def _facts(one: Shown) -> Element:
    """Labels, grade and measures in words."""
    s, g = one.sample, one.rollout.grade
    detectors = ", ".join(
        f"{name} {'yes' if found else 'no'}" for name, found in g.detectors.items() if found is not None
    )
    update = {1: "raises", -1: "lowers", 0: "leaves alone"}[(s.advantage > 0) - (s.advantage < 0)]
    answers = f"{g.num_tests_passed} of {g.num_tests} hidden answers right" if g.num_tests else "no test counts"
    paid = "not passed" if not g.passed else "passed" if g.mechanism == "none" else f"passed through {g.mechanism}"
    rows = [
        ("problem", f"{s.problem_id} ({one.rollout.env_mode})"),
        ("grade", f"reward {s.reward:g}: {paid}; {answers}"),
        ("detectors", detectors or "none applies"),
        ("isolation", g.isolation + ("; FLAKY: graded twice with different labels" if g.flaky else "")),
        ("update", f"advantage {signed(s.advantage, 3)}: the update {update} the likelihood of this completion"),
        (
            "cosines",
            f"cos_S_contrib {signed(s.cos_S_contrib, 4)}, cos_S_nll {signed(s.cos_S_nll, 4)}"
            + (f" ({s.null_reason})" if s.null_reason else ""),
        ),
        (
            "length",
            f"{s.comp_len} tokens, finished by {one.rollout.finish_reason}; nll {s.nll:.3f} nats a token"
            if s.nll is not None
            else f"{s.comp_len} tokens",
        ),
    ]
    if g.error:
        rows.append(("error", g.error))
    return node("dl", *(node("div", node("dt", name), node("dd", value)) for name, value in rows), class_="facts")


def _text(one: Shown, part: str) -> Element:
    """Prompt or completion; lengths and shares of its tokens go along, and page.js colours them when it is opened."""
    text, record = getattr(one.rollout, part), one.tokens
    chars = None if record is None else getattr(record, f"{part}_chars")
    shares = None if record is None else getattr(record, part)
    if chars is None or shares is None:
        return node("pre", "\n", text, class_="text")
    return node(
        "pre",
        "\n",  # a browser drops one newline at the start of a pre
        text,
        class_="text tokens",
        data_chars=" ".join(map(str, chars)),
        data_shares=" ".join(str(round(share / SHARE_UNIT)) for share in shares),
    )


def _sum(one: Shown, part: str) -> str:
    shares = None if one.tokens is None else getattr(one.tokens, part)
    return "" if shares is None else f", {signed(sum(shares), 4)} of cos_S_nll"


def _bar(value: float, scale: float) -> Element:
    """A cosine as a bar from the middle: left clean-ward, right hack-ward."""
    width = 28 * min(1.0, abs(value) / scale)
    bar = node(
        "rect",
        x=number(30 if value > 0 else 30 - width),
        y=3,
        width=number(width),
        height=6,
        class_="hack" if value > 0 else "clean",
    )
    return node(
        "svg",
        node("line", x1=30, y1=0, x2=30, y2=12, class_="zero"),
        bar,
        viewBox="0 0 60 12",
        class_="spark",
        aria_hidden="true",
    )
