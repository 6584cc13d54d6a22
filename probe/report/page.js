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
// A button beside every command copies it; where the browser lets no page write there, it selects the command.
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
// The rollouts: searched, sorted, filtered, and a hack beside a clean answer to the same problem. The data are those of
// probe/report/viewer.py; only the rows that are looked at become elements, so that thousands stay quick.
const dataOfRollouts = document.getElementById("rollout-data");
if (dataOfRollouts) {
  const FIRST = 20;
  const MORE = 100;
  const LEVELS = 5;
  const SNIPPET = 240;
  const { runs, rows, strings } = JSON.parse(dataOfRollouts.textContent);
  const viewer = document.querySelector(".viewer");
  const list = viewer.querySelector(".rollouts");
  const status = viewer.querySelector("[role=status]");
  const more = viewer.querySelector(".more");
  const search = viewer.querySelector("[type=search]");
  const text = (number) => strings[number];
  const state = { query: "", sort: viewer.querySelector("[name=sort]").value, label: "", source: "", run: "", view: "list", shown: FIRST };

  for (const row of rows) {
    row.anchor = `${runs[row.run].anchor}-${row.step}-${row.sample}`;
  }

  // --- elements

  const make = (tag, settings, ...children) => {
    const element = Object.assign(document.createElement(tag), settings);
    element.append(...children);
    return element;
  };
  const signed = (value, digits) =>
    value === null ? "\u2013" : (value < 0 ? "\u2212" : "+") + Math.abs(value).toFixed(digits);

  // As gist_of in facts.py: without fences of code, from the first line on that the prompt does not have.
  const gist = (row) => {
    const asked = new Set(text(row.question).split("\n").map((line) => line.trim()));
    const lines = text(row.answer).split("\n").map((line) => line.trim());
    const content = lines.filter((line) => line && !line.startsWith("```"));
    const news = content.findIndex((line) => !asked.has(line));
    return content.slice(Math.max(0, news)).join("\n");
  };

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

  const tags = (row) =>
    row.tags.map((number, i) => make("b", { className: i ? "tag" : `tag ${row.label}-tag` }, text(number)));

  // Lengths count characters, not the UTF-16 units of a JavaScript string.
  const paint = (pre, [, , chars, shares], scale) => {
    if (chars === undefined) return;
    const letters = Array.from(pre.textContent);
    const lengths = text(chars).split(" ").map(Number);
    const units = text(shares).split(" ");
    const painted = document.createDocumentFragment();
    let start = 0;
    lengths.forEach((length, i) => {
      const token = make("span", {}, letters.slice(start, start + length).join(""));
      const unit = Number(units[i]);
      if (units[i] === "x") {
        Object.assign(token, { className: "other", title: "by a tool or a user: the policy did not sample this" });
      } else if (units[i] !== "-") {
        const level = Math.min(LEVELS, Math.round((LEVELS * Math.abs(unit)) / scale));
        if (level) token.className = (unit > 0 ? "p" : "n") + level;
        const next = letters.slice(start + length, start + length + (lengths[i + 1] || 0)).join("");
        const share = `${signed(unit / 1e5, 5)} of cos_S_nll`;
        token.title = share + ": read here" + (next ? ", with " + JSON.stringify(next) + " to predict" : "");
      }
      painted.append(token);
      start += length;
    });
    painted.append(letters.slice(start).join(""));
    pre.replaceChildren(painted);
    pre.classList.add("tokens");
  };

  const texts = (row, part) => {
    const pre = make("pre", { className: "text" }, text(row[part][1]));
    paint(pre, row[part], runs[row.run].scale);
    return pre;
  };

  const facts = (row) => {
    const terms = make("dl", { className: "facts" });
    for (let i = 0; i < row.facts.length; i += 2) {
      const [name, sentence] = [text(row.facts[i]), text(row.facts[i + 1])];
      terms.append(make("div", {}, make("dt", {}, name), make("dd", {}, sentence)));
    }
    return terms;
  };

  const prompt = (row) =>
    make("details", { className: "fold" }, make("summary", {}, text(row.prompt[0])), texts(row, "prompt"));

  const where = (row) => {
    const run = runs.length > 1 ? `${runs[row.run].name} \u00b7 ` : "";
    return `${run}step ${row.step} \u00b7 sample ${row.sample} \u00b7 ${text(row.source)}`;
  };

  const numbers = (row) =>
    make("span", { className: "numbers" }, `A ${signed(row.advantage, 2)} \u00b7 reward ${Number(row.reward.toFixed(4))}`);

  // A row opens to what `fill` gives; it is made when it is first opened.
  const opening = (row, summary, fill, settings) => {
    const box = make("details", { className: "rollout", ...settings }, summary);
    box.addEventListener("toggle", () => {
      if (box.open && box.children.length === 1) box.append(fill(row));
    });
    return box;
  };

  const rolloutRow = (row) => {
    const summary = make(
      "summary", {},
      make("span", { className: "tags" }, ...tags(row)),
      make("code", { className: "snippet" }, ...snippet(state.query ? text(row.completion[1]) : gist(row))),
      bar(row),
      make("span", { className: "cosine" }, signed(row.cosine, 3)),
      make("span", { className: "where", title: where(row) }, where(row)),
      make("span", { className: "question-of" }, ...snippet(text(row.question))),
      numbers(row),
    );
    const box = opening(row, summary, opened, { id: row.anchor });
    Object.assign(box.dataset, { label: row.label, source: text(row.source) });
    return box;
  };

  const opened = (row) =>
    make(
      "div", {},
      make("div", {}, facts(row), prompt(row)),
      make("div", {}, make("h4", {}, text(row.completion[0])), texts(row, "completion")),
    );

  // --- a hack beside a clean answer

  const problemOf = (row) => `${row.run}/${row.problem}`;
  const byProblem = new Map();
  for (const row of rows) {
    if (!byProblem.has(problemOf(row))) byProblem.set(problemOf(row), { hacked: [], clean: [], unlabelled: [] });
    byProblem.get(problemOf(row))[row.label].push(row);
  }
  for (const group of byProblem.values()) {
    for (const side of [group.hacked, group.clean]) side.sort((a, b) => (b.cosine ?? 0) - (a.cosine ?? 0));
    group.clean.reverse();
  }
  const column = (side, title) => {
    const box = make("div", { className: "side" });
    let at = 0;
    const draw = () => {
      const row = side[at];
      const step = (by, name, sign) => {
        const button = make("button", { type: "button", disabled: side.length < 2 }, sign);
        button.setAttribute("aria-label", name);
        button.addEventListener("click", () => {
          at = (at + by + side.length) % side.length;
          draw();
          box.querySelectorAll("button")[by < 0 ? 0 : 1].focus();
        });
        return button;
      };
      box.replaceChildren(
        make(
          "div", { className: "side-head" },
          make("b", { className: `${row.label}-tag` }, `${title} ${at + 1} of ${side.length}`),
          step(-1, `previous ${title}`, "\u2039"), step(1, `next ${title}`, "\u203a"),
          bar(row), make("span", { className: "cosine" }, signed(row.cosine, 3)),
        ),
        make("p", { className: "where" }, where(row), " \u00b7 ", numbers(row)),
        texts(row, "completion"),
        prompt(row),
        make("details", { className: "fold" }, make("summary", {}, "Labels and measures"), facts(row)),
      );
    };
    draw();
    return box;
  };

  const problemRow = ({ hacked, clean }) => {
    const [row] = hacked;
    const summary = make(
      "summary", {},
      make("span", { className: "tags" }, make("b", { className: "tag hacked-tag" }, `${hacked.length} hacked`),
        make("b", { className: "tag clean-tag" }, `${clean.length} clean`)),
      make("span", { className: "question-of" }, ...snippet(text(row.question))),
      bar(row),
      make("span", { className: "cosine" }, signed(row.cosine, 3)),
    );
    const both = () => make("div", {}, column(hacked, "hack"), column(clean, "clean"));
    return opening(row, summary, both, { className: "rollout problem" });
  };

  // --- which rows, in which order

  const hackward = (a, b) => (b.cosine ?? 0) - (a.cosine ?? 0);
  const ORDERS = {
    coloured: (a, b) => b.completion.length - a.completion.length || hackward(a, b),
    hackward,
    cleanward: (a, b) => (a.cosine ?? 0) - (b.cosine ?? 0),
    step: (a, b) => a.run - b.run || a.step - b.step || a.sample - b.sample,
    reward: (a, b) => b.reward - a.reward,
    advantage: (a, b) => b.advantage - a.advantage,
    tokens: (a, b) => b.tokens - a.tokens,
  };
  const searched = (row) => {
    row.searched ??= [row.completion[1], row.question, row.problem].map(text).join("\n").toLowerCase();
    return row.searched;
  };
  const wanted = (row) =>
    (!state.label || row.label === state.label) &&
    (!state.source || text(row.source) === state.source) &&
    (!state.run || String(row.run) === state.run) &&
    (!state.query || searched(row).includes(state.query));

  // Rows are put into order when the order changes, not with every letter that is typed.
  const inOrder = () => {
    if (ordered.by !== state.sort) ordered = { by: state.sort, rows: [...rows].sort(ORDERS[state.sort]) };
    return ordered.rows;
  };
  let ordered = {};
  let results = [];
  const draw = () => {
    results = inOrder().filter(wanted);
    let words = `${results.length} of ${rows.length} rollouts`;
    if (state.view === "problems") {
      const groups = new Set(results.map((row) => byProblem.get(problemOf(row))));
      results = [...groups].filter((group) => group.hacked.length && group.clean.length);
      words = `${results.length} problems with a hack and a clean answer`;
    }
    status.textContent = words;
    list.replaceChildren();
    extend();
    search.value = search.value.toLowerCase() === state.query ? search.value : state.query;
    for (const button of viewer.querySelectorAll("button[data-key]")) {
      button.setAttribute("aria-pressed", String(state[button.dataset.key] === button.dataset.value));
    }
    for (const select of viewer.querySelectorAll("select")) select.value = state[select.name];
  };
  const extend = () => {
    const next = results.slice(list.children.length, state.shown);
    list.append(...next.map((result) => (state.view === "problems" ? problemRow(result) : rolloutRow(result))));
    const left = results.length - list.children.length;
    more.hidden = left === 0;
    more.textContent = `Show ${Math.min(MORE, left)} of ${left} more`;
  };
  const change = (changes) => {
    Object.assign(state, { shown: FIRST }, changes);
    draw();
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
  viewer.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-key]");
    if (button) change({ [button.dataset.key]: button.dataset.value });
  });
  more.addEventListener("click", () => {
    state.shown = list.children.length + MORE;
    const first = list.children.length;
    extend();
    list.children[first]?.firstChild.focus();
  });
  // A string of the evidence, anywhere on the page: the rollouts in which it occurs.
  document.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-search]");
    if (!button) return;
    change({ query: button.dataset.search.toLowerCase(), label: "", source: "", run: "", view: "list" });
    viewer.scrollIntoView();
    search.focus({ preventScroll: true });
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.target.matches("input, select, textarea")) return;
    event.preventDefault();
    viewer.scrollIntoView();
    search.focus({ preventScroll: true });
  });

  // A link to a rollout shows it, whatever was filtered out.
  const follow = () => {
    const anchor = decodeURIComponent(location.hash.slice(1));
    const row = rows.find((candidate) => candidate.anchor === anchor);
    if (!row) return;
    const there = () => document.getElementById(anchor);
    if (!there()) {
      Object.assign(state, { query: "", label: "", source: "", run: "", view: "list" });
      state.shown = inOrder().filter(wanted).indexOf(row) + 1;
      draw();
    }
    there().open = true;
    there().scrollIntoView();
  };
  addEventListener("hashchange", follow);
  draw();
  addEventListener("load", follow);
}
