"use strict";
// Completes the views of figures with the rows of what is chosen, and draws them with Vega-Lite.
// What a figure looks like is decided in orchestrator/report/figures.py, for page and files alike.

const WINDOW = 5;  // points of the running mean, where smoothing is asked for
const FEW_SEEDS = 5;  // as in orchestrator/report/figures.py
const MAX_BANDS = 8;  // more curves than this side by side in one panel are drawn without their bands
const LETTER = 6.1, MARGIN = 16, LEFT = 56, GAP = 14;  // as in orchestrator/charts/files.py
const NO_KL = "no KL", METRIC = "$metric";

const unique = (values) => [...new Set(values)];
const element = (name, text, attributes = {}) => {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
};

// What a view draws: a kind of table, and its metric.
function asked(view, state) {
  const [kind, ...rest] = view.table.replace(METRIC, state.metric).split(" ");
  return { kind, metric: rest.join(" ") };
}

// Seeds, and over them the mean and its interval.
function curveOf(data, configuration, metric) {
  const { g, s, m, l = [], h = [] } = configuration.curves[metric], seeds = Object.entries(s);
  // An interval goes no further than values can.
  const floor = seeds.every(([, values]) => values.every((v) => v === null || v >= 0)) ? 0 : -Infinity;
  return { x: data.grids[g], seeds, mean: m || seeds[0][1], low: l.map((v) => (v === null ? null : Math.max(floor, v))), high: h };
}

// A centred running mean; at the ends over the points that are there.
function smoothed(values) {
  const half = (WINDOW - 1) / 2;
  return values.map((v, i) => {
    const near = values.slice(Math.max(0, i - half), i + half + 1).filter((each) => each !== null);
    return v === null || !near.length ? null : near.reduce((a, b) => a + b, 0) / near.length;
  });
}

// ---------------------------------------------------------------- rows of a view

const named = ({ name, term, line }) => ({ name: term === NO_KL ? NO_KL : name, term, line });
const axisOf = (c, axis) => (axis === "model" || axis === "backend" ? c[axis] : (c.axes || {})[axis]);

function curveRows(data, at, metric, { seeds = "mean", smooth = false, log = false }) {
  const c = data.configurations[at], curve = curveOf(data, c, metric), last = curve.x.length - 1;
  // A logarithmic axis has no place for 0 and below.
  const positive = (v) => (log && v <= 0 ? null : v);
  const one = (name, values, low, high, more) => {
    const shown = smooth ? smoothed(values) : values;
    const rows = curve.x.map((step, i) => ({ ...named(c), name, at, step, value: positive(shown[i]), ...more,
      low: positive(low[i] ?? null), high: positive(high[i] ?? null), ...(smooth && seeds === "mean" ? { raw: positive(values[i]) } : {}) }));
    return rows;
  };
  const { name } = named(c);
  if (seeds !== "mean") {
    return curve.seeds.filter(([seed]) => seeds === "each" || seed === seeds)
      .flatMap(([seed, values]) => one(`${name}, seed ${seed}`, values, [], [], { thin: seeds === "each" }));
  }
  // Few seeds are drawn each, and more as a band.
  const few = curve.seeds.length <= FEW_SEEDS, none = few ? [] : undefined;
  const rows = one(smooth ? `${name}, smoothed` : name, curve.mean, none || curve.low, none || curve.high);
  if (c.cut && curve.x[last] < c.steps) rows[last].cut = `step ${curve.x[last]} of ${c.steps}: ${c.cut}`;
  if (c.collapsed[0]) rows[last].collapsed = true;
  if (!few || curve.seeds.length < 2) return rows;
  return [...curve.seeds.flatMap(([seed, values]) => one(`${name}, seed ${seed}`, values, [], [], { faint: true })), ...rows];
}

// Curves of configurations of which a seed collapsed do not set the axis. Every value stays: a row beyond
// the axis has its end as `edge`. A logarithmic axis shows everything. As _bounded of report/figures.py.
function bounded(rows, data, { log = false }) {
  const numbers = rows.filter(({ value }) => Number.isFinite(value));
  const values = numbers.filter((row) => !data.configurations[row.at].collapsed[0]).map(({ value }) => value);
  const least = values.reduce((a, b) => Math.min(a, b), Infinity), most = values.reduce((a, b) => Math.max(a, b), -Infinity);
  if (log || !(most > least)) return rows;
  const low = least - (most - least) / 4, high = most + (most - least) / 4, last = new Map(), left = new Set();
  for (const row of numbers) {
    if (row.value >= low && row.value <= high) continue;
    row.edge = Math.min(high, Math.max(low, row.value));
    const curve = `${row.panel}\n${row.name}`, side = `${row.panel}\n${row.value > high}`;
    if (!left.has(curve) && !row.faint) row.leaves = true;
    left.add(curve);
    const known = last.get(side);
    if (!known || Math.abs(row.value - low) >= Math.abs(known.value - low)) last.set(side, row);
  }
  for (const row of last.values()) row.depth = `${row.value > high ? "up" : "down"} to ${Number(row.value.toPrecision(3))}`;
  return rows;
}

function axisEnds(rows) {
  if (!rows.some((row) => row.edge !== undefined)) return undefined;
  const ends = rows.flatMap(({ edge, value, low, high }) => (edge === undefined ? [value, low, high] : [edge])).filter(Number.isFinite);
  const low = ends.reduce((a, b) => Math.min(a, b)), high = ends.reduce((a, b) => Math.max(a, b));
  return [low, high + (high - low) / 40];  // a line along the end is not cut in half
}

// Panels of curves: every configuration without a KL term is in all of them.
function panelsOf(view, data, kept, metric, group) {
  if (view.panels) return view.panels;
  const known = kept.filter((i) => data.configurations[i].curves[metric]);
  const of = (i) => data.configurations[i];
  if (view.variant === "group") {
    const values = unique(known.map((i) => axisOf(of(i), group)));
    return values.map((value) => [`${group} ${value}`, known.filter((i) => axisOf(of(i), group) === value)]);
  }
  const key = (i) => (view.variant === "beta" ? of(i).line : of(i).term);
  let all = unique(known.map(key));
  if (view.variant === "beta") all = unique(known.slice().sort((a, b) => of(a).beta - of(b).beta).map(key));
  const several = all.filter((value) => value !== NO_KL);
  return (several.length ? several : all).map((value) => [value, known.filter((i) => key(i) === value || of(i).term === NO_KL)]);
}

// `state`: what the reader chose; a view that no choice changes has its own configurations.
function rowsOf(view, data, chosen, state) {
  if (view.rows) return view.rows;
  const kept = view.at || chosen, fixed = Boolean(view.at || view.panels), { kind, metric } = asked(view, state);
  if (kind === "curves") {
    return bounded(panelsOf(view, data, kept, metric, state.group).flatMap(([panel, at]) => at.flatMap((i) =>
      curveRows(data, i, metric, fixed ? {} : state).map((row) => ({ ...row, panel })))), data, fixed ? {} : state);
  }
  const rows = data.tables[view.table] || [], place = new Map(kept.map((at, i) => [at, i]));
  const rank = (row) => data.configurations[row.at].rank;
  const own = rows.filter((row) => place.has(row.at)).sort((a, b) => rank(a) - rank(b)).map((row) => {
    const c = data.configurations[row.at];
    return { term: c.term, name: !fixed && state.group !== "none" ? `${axisOf(c, state.group)}: ${c.name}` : c.name, ...row };
  });
  const models = new Set(kept.map((i) => data.configurations[i].model));
  return own.length ? [...own, ...rows.filter((row) => models.has(row.model))] : own;
}

// ---------------------------------------------------------------- a view with its rows, as wide as its place

const walked = (spec, change) => {
  if (Array.isArray(spec)) return spec.map((each) => walked(each, change));
  if (spec === null || typeof spec !== "object") return change(spec);
  return change(Object.fromEntries(Object.entries(spec).map(([key, value]) => [key, walked(value, change)])));
};

// Scales and legends name only what the rows hold.
function narrowed(part, rows) {
  if (!part || part.type !== "nominal" || !part.scale || !part.scale.domain || !part.scale.range) return part;
  const held = new Set(rows.map((row) => row[part.field]));
  const at = part.scale.domain.map((_, i) => i).filter((i) => held.has(part.scale.domain[i]));
  return { ...part, scale: { ...part.scale, domain: at.map((i) => part.scale.domain[i]), range: at.map((i) => part.scale.range[i]) } };
}

// A layer that says what it needs is left out where no row has it.
function needed(part, rows) {
  if (!part || !part.layer) return part;
  const held = (field) => rows.some((row) => row[field] !== undefined && row[field] !== null && row[field] !== false);
  return { ...part, layer: part.layer.filter(({ needs }) => !needs || held(needs)).map(({ needs, ...layer }) => layer) };
}

function completed(view, data, rows, width, theme, state) {
  const words = { ...theme, [METRIC]: (data.metrics || {})[state.metric] };
  const ends = axisEnds(rows);
  const logged = state.log && view.table && view.table.startsWith("curves") && !view.panels;
  const spec = walked(data.specs[view.spec], (part) => {
    if (typeof part === "string") return words[part] ?? part;
    const ofValues = part && part.scale && ["value", "low", "high", "raw", "inside"].includes(part.field);
    if (logged && ofValues) return { ...part, scale: { type: "log" } };
    if (ends && ofValues) return { ...part, scale: { ...part.scale, domain: ends, nice: false } };
    return needed(narrowed(part, rows), rows);
  });
  spec.data = { values: rows };
  if (data.mark) spec.title = { text: data.mark, anchor: "end", orient: "bottom", offset: 2, fontSize: 10, fontWeight: "normal", color: theme.$banner };
  const wide = Math.min(width, view.most || width);
  const longest = view.names ? Math.max(0, ...rows.map((row) => String(row[view.names]).length)) : 0;
  const inner = wide - (view.names ? Math.min(LETTER * longest + MARGIN, wide / 2) : LEFT) - GAP;
  if (!spec.facet) return { ...spec, width: Math.round(inner) };
  // Without a sort, Vega-Lite orders panels by their names.
  spec.facet.sort = unique(rows.map((row) => row.panel));
  const count = spec.facet.sort.length;
  spec.columns = Math.max(1, Math.min(count, Math.floor(inner / view.least)));
  spec.spec.width = Math.round(inner / spec.columns) - GAP;
  if (view.variant === "group" && rows.length) {
    const most = Math.max(...unique(rows.map((r) => r.panel)).map((panel) => unique(rows.filter((r) => r.panel === panel).map((r) => r.name)).length));
    if (most > MAX_BANDS) spec.spec.layer = spec.spec.layer.filter((layer) => layer.name !== "band");
  }
  return spec;
}

// ---------------------------------------------------------------- drawing

// Fills a figure's `.panels` with empty plots; returns what draws each of them, one at a time.
function prepared({ place, views, data, chosen, state, alt }) {
  place.replaceChildren();
  const jobs = views.flatMap((view) => {
    const rows = rowsOf(view, data, chosen, state);
    if (!rows.length) return [];
    const facets = unique(rows.map((row) => row.panel)).filter(Boolean);
    const box = element("div", undefined, { class: data.specs[view.spec].facet && facets.length > 1 ? "panel all" : "panel" });
    const title = view.title || facets.join(", ");
    const plot = element("div", undefined, { class: "plot", role: "img", "aria-label": `${title}. ${alt}` });
    plot.style.minHeight = `${roomFor(data.specs[view.spec], rows, place.clientWidth / view.least)}px`;
    if (view.title) box.append(element("h3", view.title));
    box.append(plot);
    place.append(box);
    return [{ place: plot, job: () => draw(plot, view, data, rows, state) }];
  });
  if (!jobs.length) place.append(element("p", "Nothing was measured for this choice yet.", { class: "nothing" }));
  return jobs;
}

// Pixels that a drawing will be high, about: what stands below it does not jump.
function roomFor(spec, rows, across) {
  const { height } = spec.spec || spec;
  if (height.step) return 60 + height.step * unique(rows.map((row) => row.name)).length;
  const panels = Math.max(1, unique(rows.map((row) => row.panel)).length);
  return 70 + (height + 30) * Math.ceil(panels / Math.max(1, Math.floor(across)));
}

const themeName = () => (document.documentElement.dataset.print ? "print"
  : matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");

async function draw(plot, view, data, rows, state) {
  const width = plot.clientWidth, name = themeName(), theme = data.themes[name];
  const spec = completed(view, data, rows, width, theme, state);
  const look = walked(data.look, (part) => (typeof part === "string" ? theme[part] ?? part : part));
  look.font = getComputedStyle(document.body).fontFamily;
  look.legend.columns = Math.max(1, Math.floor(width / 110));
  const drawn = await vegaEmbed(plot, { ...spec, config: look }, { mode: "vega-lite", ast: true, actions: false, defaultStyle: false, logLevel: 1,
    renderer: name === "print" ? "svg" : "canvas", tooltip: { theme: name === "dark" ? "dark" : "light", disableDefaultStyle: false } });
  plot.drawn = drawn;
  plot.drawnAt = width;
  plot.rows = rows;
  plot.style.minHeight = "";
  plot.dataset.theme = name;
  drawn.view.addEventListener("click", (event, item) => {
    const at = item && item.datum && item.datum.at;
    if (at !== undefined) plot.dispatchEvent(new CustomEvent("wherefrom", { bubbles: true, detail: at }));
  });
}
