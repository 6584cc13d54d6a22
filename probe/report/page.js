"use strict";
(() => {
  const LEVELS = 5;

  // Lengths count characters, not the UTF-16 units of a JavaScript string.
  const paint = (pre) => {
    const letters = Array.from(pre.textContent);
    const chars = pre.dataset.chars.split(" ").map(Number);
    const shares = pre.dataset.shares.split(" ").map(Number);
    const scale = Number(pre.closest("[data-scale]").dataset.scale);
    const painted = document.createDocumentFragment();
    let start = 0;
    chars.forEach((length, i) => {
      const token = document.createElement("span");
      token.textContent = letters.slice(start, start + length).join("");
      const level = Math.min(LEVELS, Math.round((LEVELS * Math.abs(shares[i])) / scale));
      if (level) token.className = (shares[i] > 0 ? "p" : "n") + level;
      const next = letters.slice(start + length, start + length + (chars[i + 1] || 0)).join("");
      const share = (shares[i] > 0 ? "+" : "\u2212") + Math.abs(shares[i] / 1e5).toFixed(5) + " of cos_S_nll";
      token.title = share + ": read here" + (next ? ", with " + JSON.stringify(next) + " to predict" : "");
      painted.append(token);
      start += length;
    });
    painted.append(letters.slice(start).join(""));
    pre.replaceChildren(painted);
    pre.removeAttribute("data-chars");
  };

  const reveal = () => {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!target) return;
    for (let box = target; box; box = box.parentElement) {
      if (box.tagName === "DETAILS") box.open = true;
      box.hidden = false;
    }
    target.scrollIntoView();
  };

  const filter = (button) => {
    const bar = button.parentElement;
    const key = button.dataset.filter;
    let count = 0;
    for (const other of bar.querySelectorAll("button")) other.setAttribute("aria-pressed", String(other === button));
    for (const one of bar.nextElementSibling.children) {
      one.hidden = !(key === "" || one.dataset.label === key || "source:" + one.dataset.source === key);
      count += one.hidden ? 0 : 1;
    }
    bar.querySelector("[role=status]").textContent = count + " rollouts";
  };

  document.addEventListener("toggle", (event) => {
    if (!event.target.open) return;
    for (const pre of event.target.querySelectorAll(".tokens[data-chars]")) paint(pre);
  }, true);
  document.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-filter]");
    if (button) filter(button);
  });
  addEventListener("hashchange", reveal);
  reveal();
})();
