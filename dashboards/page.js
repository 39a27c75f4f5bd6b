"use strict";
// Choices, tables and themes. Nothing is fetched or stored.

(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const all = data.configurations || [];
  const figures = [...document.querySelectorAll("figure")].map((figure) => {
    const place = figure.querySelector(".panels");
    return { figure, place, kind: place.dataset.kind, alt: place.dataset.alt,
      metrics: place.dataset.metrics.split(" ").filter(Boolean) };
  });
  const state = { study: null, setting: null, beta: "all", seeds: false, log: false, tasks: false,
    panels: "kl", metric: null };
  const inStudy = () => all.filter((c) => c.study === state.study);
  const kinds = unique(["none", ...USUAL, ...all.map((c) => c.kl)]);
  const shown = () => inStudy().filter((c) => c.setting === state.setting
    && (state.beta === "all" || c.beta === null || String(c.beta) === state.beta))
    .sort((a, b) => kinds.indexOf(a.kl) - kinds.indexOf(b.kl) || a.beta - b.beta);

  // -------------------------------------------------------------- controls

  function choice(place, title, key, options) {
    const label = element("label", title), select = element("select", undefined, { name: key });
    for (const [id, text] of options) select.append(element("option", text, { value: id }));
    select.value = state[key];
    select.addEventListener("change", () => { state[key] = select.value; redraw(); });
    label.append(select);
    place.append(label);
  }

  function tick(place, title, key) {
    const label = element("label"), box = element("input", undefined, { type: "checkbox", name: key });
    box.checked = state[key];
    box.addEventListener("change", () => { state[key] = box.checked; redraw(); });
    label.append(box, title);
    place.append(label);
  }

  function filters() {
    const form = document.getElementById("filters");
    if (!form) return;
    form.replaceChildren();
    form.hidden = !figures.length || !all.length;
    if (form.hidden) return;
    const settings = unique(inStudy().map((c) => c.setting));
    if (!settings.includes(state.setting)) state.setting = settings[0];
    const betas = unique(inStudy().map((c) => c.beta).filter((b) => b !== null)).sort((a, b) => a - b).map(String);
    if (!betas.includes(state.beta)) state.beta = "all";
    const same = (values) => values.map((value) => [value, value]);
    choice(form, "Study", "study", same(unique(all.map((c) => c.study))));
    choice(form, "Setting", "setting", same(settings));
    choice(form, "β", "beta", same(["all", ...betas]));
    tick(form, "each seed", "seeds");
  }

  function controls({ place, figure, kind, metrics }) {
    const bar = figure.querySelector(".controls");
    bar.replaceChildren();
    figure.querySelectorAll(".legend").forEach((list) => list.remove());
    place.replaceChildren();
    place.classList.remove("wide", "square");
    if (kind === "curves") {
      const measured = metrics.filter((m) => inStudy().some((c) => c.curves[m]));
      if (!measured.includes(state.metric)) state.metric = measured[0] || metrics[0];
      choice(bar, "Measure", "metric", measured.map((m) => [m, data.metrics[m]]));
      choice(bar, "One panel per", "panels", [["kl", "KL configuration"], ["beta", "β"]]);
    }
    if (kind === "curves" || kind === "measures") tick(bar, "log scale", "log");
    if (kind === "finals" && metrics.length > 2) tick(bar, "each task", "tasks");
  }

  // -------------------------------------------------------------- drawing

  // Controls are made anew with each choice; the keyboard stays where it was.
  let turn = 0;
  function redraw() {
    const active = document.activeElement, figure = active && active.closest("figure, form");
    const mine = ++turn;
    document.documentElement.dataset.ready = "no";
    document.querySelectorAll(".js-plotly-plot").forEach((plot) => Plotly.purge(plot));
    filters();
    const jobs = figures.flatMap((f) => {
      controls(f);
      return FIGURES[f.kind](f.place, { data, all, state, shown: shown(), ...f });
    });
    if (figure && active.name) figure.querySelector(`[name="${active.name}"]`)?.focus({ preventScroll: true });
    const next = () => {
      if (mine !== turn) return;  // another choice was made meanwhile
      const job = jobs.shift();
      if (job) { job(); setTimeout(next); } else document.documentElement.dataset.ready = "yes";
    };
    setTimeout(next);
  }

  // -------------------------------------------------------------- tables

  for (const table of document.querySelectorAll("details.table")) {
    const rows = [...table.querySelectorAll("tbody tr")];
    const input = table.querySelector("input"), count = table.querySelector(".count");
    input.addEventListener("input", () => {
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      let left = 0;
      for (const row of rows) {
        const text = row.textContent.toLowerCase();
        row.hidden = !words.every((word) => text.includes(word));
        left += !row.hidden;
      }
      count.textContent = `${left} of ${rows.length} rows`;
    });
  }

  // -------------------------------------------------------------- start, theme, print

  document.querySelectorAll(".waiting").forEach((note) => note.remove());
  const finished = all.find((c) => Object.keys(c.finals).length) || all.find((c) => Object.keys(c.curves).length) || all[0];
  if (finished) Object.assign(state, { study: finished.study, setting: finished.setting });
  redraw();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  matchMedia("print").addEventListener("change", redraw);
  const opened = [];
  addEventListener("beforeprint", () => {
    for (const details of document.querySelectorAll("details.table:not([open])")) {
      if (details.querySelectorAll("tr").length <= 80) { details.open = true; opened.push(details); }
    }
  });
  addEventListener("afterprint", () => opened.splice(0).forEach((details) => { details.open = false; }));
})();
