"use strict";
// A link to a place that is folded away opens what is around it.
const linked = () => decodeURIComponent(location.hash.slice(1));
const reveal = () => {
  const target = document.getElementById(linked());
  for (let box = target; box; box = box.parentElement) {
    if (box.tagName === "DETAILS") box.open = true;
  }
  target?.scrollIntoView();
};
addEventListener("hashchange", reveal);
addEventListener("load", reveal);
// A button copies the command before it.
document.addEventListener("click", async ({ target }) => {
  if (!target.matches(".copied button")) return;
  await navigator.clipboard.writeText(target.previousElementSibling.textContent);
  target.textContent = "Copied";
  setTimeout(() => { target.textContent = "Copy"; }, 2000);
});
// The rollouts: searched, sorted and filtered. probe/report/viewer.py writes their data; a row becomes elements when it
// is shown, and its texts when it is opened.
const dataOfRollouts = document.getElementById("rollout-data");
if (dataOfRollouts) {
  const FIRST = 20;
  const MORE = 100;
  const LEVELS = 5;
  const SNIPPET = 240;
  const { runs, rows } = JSON.parse(dataOfRollouts.textContent);
  const viewer = document.querySelector(".viewer");
  const list = viewer.querySelector(".rollouts");
  const more = viewer.querySelector(".more");
  const search = viewer.querySelector("[type=search]");
  const filters = [...viewer.querySelectorAll("select:not([name=sort])")];
  const query = () => search.value.trim().toLowerCase();

  // --- elements

  const make = (tag, settings, ...children) => {
    const element = Object.assign(document.createElement(tag), settings);
    element.append(...children);
    return element;
  };
  const signed = (value, digits) =>
    value === null ? "\u2013" : (value < 0 ? "\u2212" : "+") + Math.abs(value).toFixed(digits);
  const written = (row) => row.turns.map((turn) => turn.text).join("\n");

  // Where the query occurs, the text begins a little before it, with the match marked.
  const snippet = (whole) => {
    const oneLine = whole.replace(/\s*\n\s*/g, " \u21b5 ").trim();
    const at = query() ? oneLine.toLowerCase().indexOf(query()) : -1;
    if (at < 0) return [oneLine.slice(0, SNIPPET)];
    const start = at > 60 ? at - 30 : 0;
    const end = at + query().length;
    const mark = make("mark", {}, oneLine.slice(at, end));
    return [(start ? "\u2026" : "") + oneLine.slice(start, at), mark, oneLine.slice(end, end + SNIPPET)];
  };

  const bar = (row) => {
    const share = Math.min(1, Math.abs(row.cosine || 0) / runs[row.run].largest);
    const fill = make("i", { className: row.cosine > 0 ? "hack-bar" : "clean-bar" });
    fill.style.width = `${50 * share}%`;
    const box = make("span", { className: "bar-of-cosine" }, fill);
    box.setAttribute("aria-hidden", "true");
    return box;
  };

  // A text with a span per token. Lengths count characters, not the UTF-16 units of a JavaScript string.
  const painted = ({ text, chars, shares }, scale) => {
    if (!chars) return make("pre", { className: "text" }, text);
    const letters = Array.from(text);
    const pre = make("pre", { className: "text tokens" });
    let start = 0;
    chars.forEach((length, i) => {
      const token = make("span", {}, letters.slice(start, start + length).join(""));
      const level = Math.min(LEVELS, Math.round((LEVELS * Math.abs(shares[i])) / scale));
      if (level) token.className = (shares[i] > 0 ? "p" : "n") + level;
      const next = letters.slice(start + length, start + length + (chars[i + 1] || 0)).join("");
      token.title = `${signed(shares[i] / 1e5, 5)} of the likelihood gradient's cosine: read here` + (next ? `, with ${JSON.stringify(next)} to predict` : "");
      pre.append(token);
      start += length;
    });
    pre.append(letters.slice(start).join(""));
    return pre;
  };

  const opened = (row) => {
    const { scale } = runs[row.run];
    const facts = make("dl", { className: "facts" });
    for (const [name, sentence] of row.facts) {
      facts.append(make("div", {}, make("dt", {}, name), make("dd", {}, sentence)));
    }
    const prompt = make("details", { className: "fold" }, make("summary", {}, "Prompt"), painted(row.prompt, scale));
    const turns = row.turns.flatMap((turn) => [
      make("h4", {}, `${turn.by} (${turn.count} tokens)`),
      Object.assign(painted(turn, scale), turn.by === "policy" ? {} : { className: "text other" }),
    ]);
    return make("div", {}, make("div", {}, facts, prompt), make("div", { className: "turns" }, ...turns));
  };

  const rolloutRow = (row) => {
    const tags = row.tags.map((tag, i) => make("b", { className: i ? "tag" : `tag ${row.label}-tag` }, tag));
    const run = runs.length > 1 ? `${runs[row.run].name} \u00b7 ` : "";
    const where = `${run}step ${row.step} \u00b7 sample ${row.sample} \u00b7 ${row.source}`;
    const numbers = `A ${signed(row.advantage, 2)} \u00b7 reward ${Number(row.reward.toFixed(4))}`;
    const summary = make(
      "summary", {},
      make("span", { className: "tags" }, ...tags),
      make("code", { className: "snippet" }, ...snippet(query() ? written(row) : row.gist)),
      bar(row),
      make("span", { className: "cosine" }, signed(row.cosine, 3)),
      make("span", { className: "where", title: where }, where),
      make("span", { className: "question-of" }, ...snippet(row.question)),
      make("span", { className: "numbers" }, numbers),
    );
    const box = make("details", { className: "rollout", id: row.anchor }, summary);
    box.addEventListener("toggle", () => {
      if (box.open && box.children.length === 1) box.append(opened(row));
    });
    return box;
  };

  // --- which rows, in which order

  const hackward = (a, b) => (b.cosine ?? 0) - (a.cosine ?? 0);
  const ORDERS = {
    coloured: (a, b) => Boolean(b.turns[0].chars) - Boolean(a.turns[0].chars) || hackward(a, b),
    hackward,
    cleanward: (a, b) => (a.cosine ?? 0) - (b.cosine ?? 0),
    step: (a, b) => a.run - b.run || a.step - b.step || a.sample - b.sample,
    reward: (a, b) => b.reward - a.reward,
    advantage: (a, b) => b.advantage - a.advantage,
    tokens: (a, b) => b.tokens - a.tokens,
  };
  const searched = (row) => (row.searched ??= [written(row), row.question, row.problem].join("\n").toLowerCase());
  const wanted = (row) =>
    filters.every(({ name, value }) => !value || String(row[name]) === value) && searched(row).includes(query());

  let results = [];
  const extend = (count) => {
    list.append(...results.slice(list.children.length, count).map(rolloutRow));
    const left = results.length - list.children.length;
    more.hidden = left === 0;
    more.textContent = `Show ${Math.min(MORE, left)} of ${left} more`;
  };
  const draw = (count = FIRST) => {
    results = rows.filter(wanted).sort(ORDERS[viewer.querySelector("[name=sort]").value]);
    viewer.querySelector("[role=status]").textContent = `${results.length} of ${rows.length} rollouts`;
    list.replaceChildren();
    extend(count);
  };
  const reset = (text) => {
    for (const field of filters) field.value = "";
    search.value = text;
  };

  // --- what the reader does

  viewer.addEventListener("input", () => draw());
  more.addEventListener("click", () => {
    const first = list.children.length;
    extend(first + MORE);
    list.children[first].firstChild.focus();
  });
  document.addEventListener("click", (event) => {
    const text = event.target.closest("button")?.dataset.search;
    if (text === undefined) return;
    reset(text);
    draw();
    viewer.scrollIntoView();
    search.focus({ preventScroll: true });
  });

  // A link to a rollout shows it, whatever was filtered out.
  const follow = () => {
    const anchor = linked();
    if (!rows.some((row) => row.anchor === anchor)) return;
    reset("");
    draw(rows.length);
    document.getElementById(anchor).open = true;
    reveal();
  };
  addEventListener("hashchange", follow);
  draw();
  addEventListener("load", follow);
}
