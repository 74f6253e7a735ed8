"use strict";
// The standings: choose a measure, data sets and methods, sort by a column. Without this script the table stays as it is.
(function () {
  const data = JSON.parse(document.getElementById("numbers").textContent);
  const table = document.getElementById("standings");
  const body = table.tBodies[0];
  const heads = Array.from(table.tHead.rows[0].cells);
  const rows = Array.from(body.rows);
  const sets = data.sets.map(([name]) => name);
  const state = { measure: data.first, sets: new Set(sets), group: "all", words: "", column: 1, down: false };

  function cell(method, set) { return (data.cells[method] || {})[set]; }
  function number(method, set) {
    const found = cell(method, set);
    return found && found[state.measure] ? found[state.measure][0] : null;
  }
  function higher() { return data.measures.find(([key]) => key === state.measure)[3]; }
  function visible(method) {
    const paper = data.paper.includes(method);
    return (state.group === "all" || (state.group === "paper") === paper) &&
      method.toLowerCase().includes(state.words.toLowerCase());
  }

  // Mean ranks over the chosen data sets, among the methods shown that are finished on all of them.
  function ranks(methods) {
    const chosen = sets.filter((set) => state.sets.has(set) &&
      methods.filter((m) => cell(m, set) && cell(m, set).whole).length * 2 >= methods.length);
    const full = methods.filter((m) => chosen.every((set) =>
      cell(m, set) && cell(m, set).whole && number(m, set) !== null));
    const sum = new Map(full.map((m) => [m, 0]));
    for (const set of chosen) {
      for (const m of full) {
        const mine = number(m, set);
        const better = full.filter((o) => higher() ? number(o, set) > mine : number(o, set) < mine).length;
        const equal = full.filter((o) => number(o, set) === mine).length;
        sum.set(m, sum.get(m) + better + (equal + 1) / 2);
      }
    }
    return new Map(chosen.length ? full.map((m) => [m, sum.get(m) / chosen.length]) : []);
  }

  // Best and second best of a column, rounded as they are shown; what many share is not marked.
  function marks(methods, set) {
    if (data.measures.find(([key]) => key === state.measure)[4]) { return { b: null, u: null }; }
    const values = methods.map((m) => number(m, set)).filter((v) => v !== null).map((v) => v.toFixed(2));
    const sorted = Array.from(new Set(values)).sort((a, b) => (higher() ? b - a : a - b));
    const rare = (v) => v !== undefined && values.filter((o) => o === v).length <= 2 && new Set(values).size > 1;
    return { b: rare(sorted[0]) ? sorted[0] : null, u: rare(sorted[1]) ? sorted[1] : null };
  }

  function show() {
    const methods = rows.map((row) => row.dataset.method).filter(visible);
    const found = ranks(methods);
    const best = new Map(sets.map((set) => [set, marks(methods, set)]));
    for (const row of rows) {
      const method = row.dataset.method;
      row.hidden = !visible(method);
      row.cells[1].textContent = found.has(method) ? found.get(method).toFixed(2) : "-";
      sets.forEach((set, k) => {
        const place = row.cells[k + 2], known = cell(method, set);
        place.hidden = !state.sets.has(set);
        const target = place.querySelector("a");
        if (!known || !target) { return; }
        const value = known[state.measure];
        const begun = data.measures.some(([key]) => known[key]);
        const text = value ? value[1] : begun ? "-" : "missing";
        const mark = value && best.get(set);
        const tag = mark && value[0].toFixed(2) === mark.b ? "b" : mark && value[0].toFixed(2) === mark.u ? "u" : "span";
        const made = document.createElement(tag);
        made.textContent = text;
        made.className = value || begun ? "" : "missing";
        target.replaceChildren(made);
      });
    }
    heads.forEach((head, k) => {
      if (k > 1) { head.hidden = !state.sets.has(sets[k - 2]); }
      head.setAttribute("aria-sort", k === state.column ? (state.down ? "descending" : "ascending") : "none");
    });
    sort(found);
    const words = data.measures.find(([key]) => key === state.measure)[2];
    document.getElementById("shown").firstChild.textContent = words[0].toUpperCase() + words.slice(1);
  }

  function sort(found) {
    const key = (row) => {
      const method = row.dataset.method;
      if (state.column === 0) { return method.toLowerCase(); }
      if (state.column === 1) { return found.has(method) ? found.get(method) : null; }
      return number(method, sets[state.column - 2]);
    };
    const keyed = rows.map((row, k) => [key(row), k, row]);
    keyed.sort(([a, i], [b, j]) => {
      if (a === null || b === null) { return a === b ? i - j : a === null ? 1 : -1; }
      return (a < b ? -1 : a > b ? 1 : 0) * (state.down ? -1 : 1) || i - j;
    });
    body.append(...keyed.map(([, , row]) => row));
  }

  function made(tag, settings, ...inside) {
    const element = Object.assign(document.createElement(tag), settings);
    element.append(...inside);
    return element;
  }
  function select(title, options, choose) {
    const list = made("select", {}, ...options.map(([value, words]) => made("option", { value }, words)));
    list.addEventListener("change", () => { choose(list.value); show(); });
    return made("label", {}, title + " ", list);
  }

  const measures = select("Show", data.measures.map(([key, title]) => [key, title]), (key) => {
    state.measure = key;
    state.down = state.column > 1 && higher();
  });
  const groups = select("Methods", [["all", "all"], ["paper", "the pFedSim paper's"], ["others", "others"]],
    (group) => { state.group = group; });
  const search = made("input", { type: "search", size: 12 });
  search.addEventListener("input", () => { state.words = search.value; show(); });
  const boxes = data.sets.map(([name, title]) => {
    const box = made("input", { type: "checkbox", checked: true });
    box.addEventListener("change", () => {
      if (box.checked) { state.sets.add(name); } else { state.sets.delete(name); }
      show();
    });
    return made("label", {}, box, " " + title);
  });
  const controls = document.getElementById("controls");
  controls.append(measures, groups, made("label", {}, "Name ", search));
  if (data.sets.length > 1) {
    controls.append(made("fieldset", {}, made("legend", {}, "Data sets"), ...boxes));
  }
  heads.forEach((head, k) => {
    const button = made("button", { type: "button" }, ...head.childNodes);
    button.addEventListener("click", () => {
      state.down = state.column === k ? !state.down : k > 1 && higher();
      state.column = k;
      show();
    });
    head.append(button);
  });
  // A link to a cell unfolds what lies behind it.
  function unfold() {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!target || target.tagName !== "DETAILS") { return; }
    for (let part = target; part; part = part.parentElement && part.parentElement.closest("details")) {
      part.open = true;
    }
    target.scrollIntoView();
  }
  window.addEventListener("hashchange", unfold);
  unfold();
  show();
})();
