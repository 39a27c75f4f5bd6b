"use strict";
// Choices, tables, where a number comes from, themes, printing. Nothing is fetched or stored.

(() => {
  const root = document.documentElement;
  const data = JSON.parse(document.getElementById("data").textContent);
  const all = data.configurations || [];
  all.forEach((c, i) => { c.place = i; });
  const figures = [...document.querySelectorAll("figure")].map((figure) => {
    const place = figure.querySelector(".panels");
    return { figure, place, kind: place.dataset.kind, alt: place.dataset.alt, views: data.views[place.dataset.views] || [],
      metrics: place.dataset.metrics.split(" ").filter(Boolean) };
  });
  const state = { study: null, setting: null, backend: "all", kl: "all", beta: "all", seeds: "mean", group: "none",
    log: false, smooth: false, tasks: false, panels: "kl", metric: null };
  const inStudy = () => all.filter((c) => c.study === state.study && (state.backend === "all" || c.backend === state.backend));
  // Where settings differ in several axes, each axis narrows the choice of a setting.
  const axes = () => {
    const names = unique(inStudy().flatMap((c) => Object.keys(c.axes || {})));
    return names.length > 1 ? names : [];
  };
  const narrowedDown = () => {
    const names = axes();
    return inStudy().filter((c) => names.every((axis) => ["all", undefined, c.axes[axis]].includes(state[`axis ${axis}`])));
  };
  const chosen = (list) => list.filter((c) => (state.kl === "all" || c.kl === "none" || c.kl === state.kl)
    && (state.beta === "all" || c.beta === null || String(c.beta) === state.beta))
    .sort((a, b) => a.rank - b.rank);
  const shown = () => chosen(inStudy().filter((c) => c.setting === state.setting));
  // The axes that configurations of the study can be set side by side along.
  const groups = () => unique(["model", "backend", ...inStudy().flatMap((c) => Object.keys(c.axes || {}))])
    .filter((axis) => unique(inStudy().map((c) => axisOf(c, axis))).length > 1);

  // What is chosen stands in the address, after `#?`: it can be sent to a colleague, and needs no server.
  const opened = {};
  function writeAddress() {
    const own = Object.entries(state).filter(([key, value]) => value !== (opened[key] ?? "all"));
    const text = new URLSearchParams(own.map(([key, value]) => [key, String(value)])).toString();
    if (text) history.replaceState(null, "", `#?${text}`);
    else if (location.hash.startsWith("#?")) history.replaceState(null, "", location.href.split("#")[0]);
  }
  function readAddress() {
    if (!location.hash.startsWith("#?")) return false;
    for (const [key, value] of new URLSearchParams(location.hash.slice(2))) {
      if (key in state || key.startsWith("axis ")) state[key] = typeof opened[key] === "boolean" ? value === "true" : value;
    }
    const [first] = all.filter((c) => c.study === state.study);
    if (!first) Object.assign(state, { study: opened.study, setting: opened.setting });
    return true;
  }

  // -------------------------------------------------------------- controls

  function choice(place, title, key, options) {
    const label = element("label", title), select = element("select", undefined, { name: key });
    for (const [id, text] of options) select.append(element("option", text, { value: id }));
    select.value = state[key];
    select.addEventListener("change", () => { state[key] = select.value; redraw(); writeAddress(); });
    label.append(select);
    place.append(label);
  }

  function tick(place, title, key) {
    const label = element("label"), box = element("input", undefined, { type: "checkbox", name: key });
    box.checked = state[key];
    box.addEventListener("change", () => { state[key] = box.checked; redraw(); writeAddress(); });
    label.append(box, title);
    place.append(label);
  }

  const named = (study) => {
    const { title, figure } = (data.studies || {})[study] || {};
    return [study, [study, title].filter(Boolean).join(": ") + (figure ? ` (${figure})` : "")];
  };

  function filters() {
    const form = document.getElementById("filters");
    if (!form) return;
    form.replaceChildren();
    form.hidden = !figures.length || !all.length;
    if (form.hidden) return;
    // A choice of another study may not exist in this one.
    const valid = (key, values, other) => { if (!values.includes(state[key])) state[key] = other; };
    const backends = unique(all.filter((c) => c.study === state.study).map((c) => c.backend));
    valid("backend", backends, "all");
    const narrowing = axes().map((axis) =>
      [axis, `axis ${axis}`, unique(inStudy().map((c) => c.axes[axis]).filter(Boolean))]);
    for (const [, key, values] of narrowing) valid(key, values, "all");
    const settings = unique((narrowedDown().length ? narrowedDown() : inStudy()).map((c) => c.setting));
    valid("setting", settings, settings[0]);
    const own = inStudy().filter((c) => c.setting === state.setting);
    const betas = unique(own.map((c) => c.beta).filter((b) => b !== null)).sort((a, b) => a - b).map(String);
    valid("beta", betas, "all");
    const terms = unique(own.map((c) => c.kl).filter((kl) => kl !== "none"));
    valid("kl", terms, "all");
    valid("group", groups(), "none");
    const seeds = unique(own.flatMap((c) => c.cells.map(([seed]) => seed))).sort((a, b) => a - b).map(String);
    valid("seeds", ["each", ...seeds], "mean");
    const same = (values) => values.map((value) => [value, value]);
    choice(form, "Study", "study", unique(all.map((c) => c.study)).map(named));
    if (backends.length > 1) choice(form, "Backend", "backend", same(["all", ...backends]));
    for (const [axis, key, values] of narrowing) choice(form, axis, key, same(["all", ...values]));
    choice(form, "Setting", "setting", same(settings));
    choice(form, "KL", "kl", same(["all", ...terms]));
    choice(form, "β", "beta", same(["all", ...betas]));
    choice(form, "Seeds", "seeds", [["mean", "mean and interval"], ["each", "each"], ...seeds.map((s) => [s, `only ${s}`])]);
    if (groups().length) choice(form, "Side by side", "group", [["none", "one setting"], ...groups().map((axis) => [axis, `by ${axis}`])]);
  }

  function controls({ figure, kind, metrics }) {
    const bar = figure.querySelector(".controls");
    bar.replaceChildren();
    figure.querySelectorAll(".from").forEach((part) => part.remove());
    if (kind === "curves") {
      const measured = metrics.filter((m) => inStudy().some((c) => c.curves[m]));
      if (!measured.includes(state.metric)) state.metric = measured[0] || metrics[0];
      choice(bar, "Measure", "metric", measured.map((m) => [m, data.metrics[m]]));
      choice(bar, "One panel per", "panels", [["kl", "KL configuration"], ["beta", "β"]]);
    }
    if (kind === "curves" || kind === "measures") {
      tick(bar, "log scale", "log");
      tick(bar, `smoothed (running mean of ${WINDOW} points)`, "smooth");
    }
    if (kind === "finals" && metrics.length > 2) tick(bar, "each task", "tasks");
  }

  // -------------------------------------------------------------- drawing

  // Controls are made anew with each choice; the keyboard stays where it was. Panels are drawn one
  // at a time, the nearest to the eye first; `data-ready` says when all of them are.
  let turn = 0, waiting = [];
  const distance = ({ place }) => {
    const { top, bottom } = place.getBoundingClientRect();
    return Math.max(0, top - innerHeight, -bottom);
  };

  // Sets the controls; returns what each figure is to draw.
  function prepare() {
    const active = document.activeElement, figure = active && active.closest("figure, form");
    root.dataset.ready = "no";
    // A Vega view that is taken away keeps its timers and listeners until it is finalised.
    document.querySelectorAll(".plot").forEach((plot) => plot.drawn && plot.drawn.finalize());
    filters();
    // What lies in a folded part has no width yet: it is drawn when it is opened.
    const drawings = figures.filter(({ place }) => place.offsetParent !== null).map((f) => {
      controls(f);
      const side = state.group !== "none" && (f.kind === "curves" || f.kind === "finals");
      const label = f.kind !== "curves" ? "kl" : side ? "group" : state.panels;
      const views = f.views.filter((view) => (!view.variant || view.variant === label) && (!view.extra || state.tasks));
      return { ...f, views, data, chosen: (side ? chosen(narrowedDown()) : shown()).map((c) => c.place),
        state: side ? { ...state } : { ...state, group: "none" } };
    });
    if (figure && active.name) figure.querySelector(`[name="${active.name}"]`)?.focus({ preventScroll: true });
    return drawings;
  }

  function redraw() {
    const mine = ++turn;
    waiting = prepare().flatMap(prepared);
    const next = async () => {
      if (mine !== turn) return;  // another choice was made meanwhile
      if (!waiting.length) { root.dataset.seen = root.dataset.ready = "yes"; once("all drawn"); return; }
      const far = waiting.map(distance), at = far.indexOf(Math.min(...far));
      if (far[at] > 0) { root.dataset.seen = "yes"; once("in view"); }
      await waiting.splice(at, 1)[0].job();
      once("first figure");
      // A timer between two drawings lets the browser answer the reader.
      setTimeout(next);
    };
    requestAnimationFrame(() => setTimeout(next));
  }

  // The page's own record of its opening, in performance.getEntriesByType("mark").
  const once = (name) => { if (!performance.getEntriesByName(name).length) performance.mark(name); };

  // All at once, within the event: a browser prints when the event's own promises are settled.
  function drawNow() {
    turn += 1;
    waiting = [];
    const jobs = prepare().flatMap(prepared).map(({ job }) => job());
    Promise.all(jobs).then(() => { root.dataset.ready = "yes"; });
  }

  // -------------------------------------------------------------- where a number comes from

  addEventListener("wherefrom", ({ target, detail }) => {
    const figure = target.closest("figure"), configuration = all[detail];
    if (!figure || !configuration) return;
    figure.querySelectorAll(".from").forEach((old) => old.remove());
    const box = element("p", undefined, { class: "from", role: "status" });
    box.append(element("strong", `${configuration.study}, ${configuration.setting}, ${configuration.name}`), " rests on ");
    configuration.cells.forEach(([seed, id], i) => {
      if (i) box.append(", ");
      box.append(element("a", `cell ${id} (seed ${seed})`, { href: `#cell-${id}` }));
    });
    figure.querySelector("figcaption").before(box);
  });

  // A link to a row opens the table it is in, and shows it if a search had hidden it.
  function reveal() {
    const name = decodeURIComponent(location.hash.slice(1));
    if (!name || name.startsWith("?")) return;
    const row = document.getElementById(name);
    if (!row) return;
    row.hidden = false;
    for (let at = row.parentElement; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
    if (row.tagName === "TR") { row.scrollIntoView({ block: "center" }); row.focus({ preventScroll: true }); }
  }
  addEventListener("hashchange", () => { if (readAddress()) redraw(); else reveal(); });
  document.addEventListener("click", (event) => {
    const link = event.target.closest && event.target.closest('a[href^="#cell-"]');
    // A click on a link to the present address raises no `hashchange`.
    if (link && link.getAttribute("href") === location.hash) reveal();
  });

  // -------------------------------------------------------------- tables

  for (const table of document.querySelectorAll("details.table")) {
    const rows = [...table.querySelector("tbody").rows];
    const input = table.querySelector("input"), count = table.querySelector(".count");
    input.addEventListener("input", () => {
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      for (const row of rows) {
        const text = row.textContent.toLowerCase();
        row.hidden = !words.every((word) => text.includes(word));
      }
      count.textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length} rows`;
    });
  }

  // A table as a file: LaTeX with booktabs, or CSV.
  const LATEX = { "\\": "\\textbackslash{}", "β": "$\\beta$", "±": "$\\pm$", "−": "$-$", "·": "$\\cdot$" };
  const latex = (text) => text.replace(/[\\β±−·&%$#_{}]/g, (sign) => LATEX[sign] || `\\${sign}`);
  const FILES = {
    tex: (rows) => [`\\begin{tabular}{l${"c".repeat(rows[0].length - 1)}}`, "\\toprule", ...rows.flatMap((row, i) =>
      [`${row.map(latex).join(" & ")} \\\\`, ...(i ? [] : ["\\midrule"])]), "\\bottomrule", "\\end{tabular}", ""].join("\n"),
    csv: (rows) => rows.map((row) => row.map((text) => `"${text.replaceAll('"', '""')}"`).join(",")).join("\n") + "\n",
  };
  for (const place of document.querySelectorAll(".table.exported")) {
    const caption = place.querySelector(".caption");
    for (const [ending, title] of [["tex", "LaTeX"], ["csv", "CSV"]]) {
      const button = element("button", title, { type: "button" });
      button.addEventListener("click", () => {
        const rows = [...place.querySelectorAll("tr")].map((row) => [...row.cells].map((cell) => cell.textContent));
        const file = URL.createObjectURL(new Blob([FILES[ending](rows)], { type: "text/plain" }));
        element("a", "", { href: file, download: `${caption.firstChild.textContent.replace(/[^\w.-]+/g, "-")}.${ending}` }).click();
        setTimeout(() => URL.revokeObjectURL(file), 1000);
      });
      caption.append(" ", button);
    }
  }

  // -------------------------------------------------------------- start, theme, print

  document.querySelectorAll(".waiting").forEach((note) => note.remove());
  if (data.thinned) {
    const [most, drawn] = data.thinned;
    document.querySelectorAll("#figure-curves figcaption").forEach((caption) => {
      caption.append(` Of up to ${most} train steps, ${drawn} are drawn, evenly spaced.`);
    });
  }
  const [study, setting] = data.worst || [];
  const finished = all.find((c) => c.scored && c.study === study && c.setting === setting) || all.find((c) => c.scored) || all.find((c) => Object.keys(c.curves).length) || all[0];
  if (finished) Object.assign(state, { study: finished.study, setting: finished.setting });
  const curves = figures.find(({ kind }) => kind === "curves");
  if (curves) state.metric = curves.metrics.find((m) => inStudy().some((c) => c.curves[m])) || curves.metrics[0];
  Object.assign(opened, state);
  readAddress();
  redraw();
  reveal();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  // The page is not ready from the first change of size on, until it is drawn in the last one.
  let later = 0, resized = false;
  const fits = (plot) => !plot.drawn || Math.abs(plot.clientWidth - plot.drawnAt) < 4;
  addEventListener("resize", () => {
    clearTimeout(later);
    resized = !root.dataset.print && (resized || ![...document.querySelectorAll(".plot")].every(fits));
    if (!resized) return;
    root.dataset.ready = "no";
    later = setTimeout(() => { resized = false; redraw(); }, 150);
  });

  document.getElementById("details")?.addEventListener("toggle", ({ target }) => {
    if (target.id === "details" && target.open && !root.dataset.print) redraw();
  });

  // Timers stand still while a page is printed: everything is drawn before, in the paper's width.
  const unfolded = [];
  addEventListener("beforeprint", () => {
    for (const details of document.querySelectorAll("#details:not([open]), details.table:not([open])")) {
      if (details.id || details.querySelectorAll("tr").length <= 80) { details.open = true; unfolded.push(details); }
    }
    root.dataset.print = "yes";
    drawNow();
  });
  addEventListener("afterprint", () => {
    delete root.dataset.print;
    unfolded.splice(0).forEach((details) => { details.open = false; });
    redraw();
  });
})();
