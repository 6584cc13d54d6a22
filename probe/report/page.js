"use strict";
// A link to a place that is folded away opens what is around it.
{
  const reveal = () => {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!target) return;
    for (let box = target; box; box = box.parentElement) {
      if (box.tagName === "DETAILS") box.open = true;
    }
    target.scrollIntoView();
  };
  addEventListener("hashchange", reveal);
  addEventListener("load", reveal);
}
// A button copies each command; where the browser allows no page to write there, it selects the command.
for (const command of document.querySelectorAll("pre.command")) {
  const box = Object.assign(document.createElement("div"), { className: "copied" });
  const button = Object.assign(document.createElement("button"), { type: "button", textContent: "Copy" });
  command.replaceWith(box);
  box.append(command, button);
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(command.textContent);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(command);
      button.textContent = "Selected";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
}
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
  const status = viewer.querySelector("[role=status]");
  const more = viewer.querySelector(".more");
  const search = viewer.querySelector("[type=search]");
  const all = { query: "", label: "", source: "", run: "" };
  const state = { ...all, sort: viewer.querySelector("[name=sort]").value, shown: FIRST };

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
    const at = state.query ? oneLine.toLowerCase().indexOf(state.query) : -1;
    if (at < 0) return [oneLine.slice(0, SNIPPET)];
    const start = at > 60 ? at - 30 : 0;
    const end = at + state.query.length;
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

  const where = (row) => {
    const run = runs.length > 1 ? `${runs[row.run].name} \u00b7 ` : "";
    return `${run}step ${row.step} \u00b7 sample ${row.sample} \u00b7 ${row.source}`;
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
    const numbers = `A ${signed(row.advantage, 2)} \u00b7 reward ${Number(row.reward.toFixed(4))}`;
    const summary = make(
      "summary", {},
      make("span", { className: "tags" }, ...tags),
      make("code", { className: "snippet" }, ...snippet(state.query ? written(row) : row.gist)),
      bar(row),
      make("span", { className: "cosine" }, signed(row.cosine, 3)),
      make("span", { className: "where", title: where(row) }, where(row)),
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
  const searched = (row) => {
    row.searched ??= [written(row), row.question, row.problem].join("\n").toLowerCase();
    return row.searched;
  };
  const wanted = (row) =>
    (!state.label || row.label === state.label) &&
    (!state.source || row.source === state.source) &&
    (!state.run || String(row.run) === state.run) &&
    (!state.query || searched(row).includes(state.query));

  let results = [];
  const draw = () => {
    results = rows.filter(wanted).sort(ORDERS[state.sort]);
    status.textContent = `${results.length} of ${rows.length} rollouts`;
    list.replaceChildren();
    extend();
    search.value = search.value.toLowerCase() === state.query ? search.value : state.query;
    for (const button of viewer.querySelectorAll("button[data-key]")) {
      button.setAttribute("aria-pressed", String(state[button.dataset.key] === button.dataset.value));
    }
    for (const select of viewer.querySelectorAll("select")) select.value = state[select.name];
  };
  const extend = () => {
    list.append(...results.slice(list.children.length, state.shown).map(rolloutRow));
    const left = results.length - list.children.length;
    more.hidden = left === 0;
    more.textContent = `Show ${Math.min(MORE, left)} of ${left} more`;
  };
  const change = (changes) => {
    Object.assign(state, { shown: FIRST }, changes);
    draw();
  };
  const find = (query) => {
    if (query !== undefined) change({ ...all, query: query.toLowerCase() });
    viewer.scrollIntoView();
    search.focus({ preventScroll: true });
  };

  // --- what the reader does

  let typing;
  search.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(() => change({ query: search.value.toLowerCase() }), 80);
  });
  viewer.addEventListener("change", (event) => {
    if (event.target.tagName === "SELECT") change({ [event.target.name]: event.target.value });
  });
  more.addEventListener("click", () => {
    state.shown = list.children.length + MORE;
    const first = list.children.length;
    extend();
    list.children[first]?.firstChild.focus();
  });
  document.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (button?.dataset.key) change({ [button.dataset.key]: button.dataset.value });
    if (button?.dataset.search) find(button.dataset.search);
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.target.matches("input, select, textarea")) return;
    event.preventDefault();
    find();
  });

  // A link to a rollout shows it, whatever was filtered out.
  const follow = () => {
    const anchor = decodeURIComponent(location.hash.slice(1));
    if (!rows.some((row) => row.anchor === anchor)) return;
    if (!document.getElementById(anchor)) change({ ...all, shown: rows.length });
    const there = document.getElementById(anchor);
    there.open = true;
    there.scrollIntoView();
  };
  addEventListener("hashchange", follow);
  draw();
  addEventListener("load", follow);
}
