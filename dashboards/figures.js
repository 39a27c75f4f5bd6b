"use strict";
// Pictures of the data. Each function fills a figure's `.panels`; page.js says what is chosen.

// Okabe and Ito's palette, darkened or lightened by the theme to be seen on its ground.
const PALETTE = ["--c0", "--c1", "--c2", "--c3", "--c4", "--c5"];
const DASHES = ["solid", "dash", "dot", "dashdot", "longdash", "longdashdot"];
const SYMBOLS = ["circle", "square", "diamond", "triangle-up", "cross", "triangle-down"];
const USUAL = ["k1.reward", "k3.loss", "k1.loss", "k3.reward", "k1.both", "k3.both"];
const LEAST_SPAN = 0.1;  // of an axis of final accuracies: one seed's 0.89 and 0.91 must not look far apart
const MAX_BANDS = 8;  // more lines than this in one panel are drawn without their bands
const WINDOW = 5;  // points of the running mean, where smoothing is asked for

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const safe = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
const rgba = (hex, alpha) =>
  `rgba(${[1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16)).join(",")},${alpha})`;
const told = (value) => (value === null || value === undefined ? "–" : value.toPrecision(3));
const percent = (value) => (value === null || value === undefined ? null : 100 * value);
const unique = (values) => [...new Set(values)];
const element = (name, text, attributes = {}) => {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
};

// One look for each value of a list, so that neither colour nor dash alone carries the meaning.
function looks(values) {
  const known = values.filter((value) => value !== "none");
  const places = known.some((value) => USUAL.includes(value)) ? [...unique([...USUAL, ...known])] : known;
  return (value) => {
    if (value === "none" || value === null) {
      return { color: css("--none"), dash: "solid", symbol: "circle-open", width: 1.6 };
    }
    const i = places.indexOf(value);
    return {
      color: css(PALETTE[i % PALETTE.length]), symbol: SYMBOLS[i % SYMBOLS.length], width: 2.2,
      dash: DASHES[(i < PALETTE.length ? i : i + 1) % DASHES.length],
    };
  };
}

// Values with an order (betas): one ramp of falling darkness, so that the order is seen.
function ramp(values) {
  const stops = ["--r0", "--r1", "--r2", "--r3"].map(css).map((hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16)));
  const plain = looks(["none"]);
  return (value) => {
    if (value === "none" || value === null) return plain("none");
    const i = values.indexOf(value), at = (values.length > 1 ? i / (values.length - 1) : 0) * (stops.length - 1);
    const from = stops[Math.floor(at)], to = stops[Math.ceil(at)], share = at - Math.floor(at);
    const mixed = from.map((v, k) => Math.round(v + share * (to[k] - v)).toString(16).padStart(2, "0"));
    return { color: `#${mixed.join("")}`, dash: DASHES[i % DASHES.length], symbol: SYMBOLS[i % SYMBOLS.length], width: 2.2 };
  };
}

// ---------------------------------------------------------------- curves, as packing.py wrote them

const POWERS = Array.from({ length: 20 }, (_, e) => 10 ** e);

function unpacked(text) {
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  return Array.from({ length: bytes.length / 2 }, (_, i) => {
    const code = bytes[2 * i] + 256 * bytes[2 * i + 1];
    if (code === 65535) return null;
    const m = (code >> 5) - 999, e = (code & 31) - 12;
    return e < 0 ? m / POWERS[-e] : m * POWERS[e];
  });
}

// Seeds, and over them the mean and its interval by Student's t, cut to [0, 1] for shares.
function curveOf(data, configuration, metric) {
  const curve = configuration.curves[metric];
  if (curve.mean) return curve;
  curve.x = data.grids[curve.g];
  curve.seeds = Object.entries(curve.s).map(([seed, text]) => [seed, unpacked(text)]);
  const n = curve.seeds.length, share = data.shares.includes(metric), cut = (v) => (share ? Math.min(1, Math.max(0, v)) : v);
  curve.low = [];
  curve.high = [];
  curve.mean = curve.x.map((_, i) => {
    const at = curve.seeds.map(([, values]) => values[i]), known = !at.includes(null);
    const mean = known ? at.reduce((a, b) => a + b, 0) / n : null;
    const sd = known && n > 1 ? Math.sqrt(at.reduce((sum, v) => sum + (v - mean) ** 2, 0) / (n - 1)) : null;
    const half = sd === null ? null : data.t[n] * sd / Math.sqrt(n);
    curve.low.push(half === null ? null : cut(mean - half));
    curve.high.push(half === null ? null : cut(mean + half));
    return mean;
  });
  return curve;
}

// A centred running mean; at the ends over the points that are there.
function smoothed(values) {
  const half = (WINDOW - 1) / 2;
  return values.map((v, i) => {
    const near = values.slice(Math.max(0, i - half), i + half + 1).filter((each) => each !== null);
    return v === null || !near.length ? null : near.reduce((a, b) => a + b, 0) / near.length;
  });
}

const MARKS = {  // in a field of 30 x 12
  circle: "M10 6a5 5 0 1 0 10 0a5 5 0 1 0-10 0", square: "M10.5 1.5h9v9h-9z", diamond: "M15 0l6 6-6 6-6-6z",
  "triangle-up": "M15 1l5.5 10h-11z", "triangle-down": "M15 11l5.5-10h-11z", cross: "M13 1h4v3h3v4h-3v3h-4v-3h-3v-4h3z",
};

// Between the controls of a figure and its panels.
function legend(place, items, marks = false) {
  const list = element("ul", undefined, { class: "legend" });
  const svg = (name, attributes) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    return made;
  };
  const strokes = { solid: "", dash: "7 4", dot: "2 3", dashdot: "7 3 2 3", longdash: "11 4", longdashdot: "11 3 2 3" };
  for (const [name, look] of items) {
    const item = element("li");
    const picture = svg("svg", { width: 30, height: 12, "aria-hidden": "true" });
    if (marks) picture.append(svg("path", { fill: look.color, d: MARKS[look.symbol] || MARKS.circle }));
    else picture.append(svg("line", { x1: 0, x2: 30, y1: 6, y2: 6, stroke: look.color, "stroke-width": 2.5,
      "stroke-dasharray": strokes[look.dash] }));
    item.append(picture, element("span", name));
    list.append(item);
  }
  place.before(list);
}

function panel(place, title, alt, height) {
  const box = element("div", undefined, { class: "panel" });
  const plot = element("div", undefined, { class: "plot", role: "img", "aria-label": `${title}. ${alt}` });
  if (height) plot.style.height = `${height}px`;
  box.append(element("h3", title), plot);
  place.append(box);
  return plot;
}

function draw(plot, traces, layout) {
  const axis = { gridcolor: css("--grid"), linecolor: css("--line"), zerolinecolor: css("--line"),
    tickfont: { size: 11 }, automargin: true };
  const whole = {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false,
    font: { color: css("--text"), family: getComputedStyle(document.body).fontFamily, size: 12 },
    margin: { l: 44, r: 14, t: 6, b: 34 }, hovermode: "closest",
    hoverlabel: { bgcolor: css("--raised"), bordercolor: css("--line"), font: { color: css("--text") } },
    ...layout, xaxis: { ...axis, ...layout.xaxis }, yaxis: { ...axis, ...layout.yaxis },
  };
  const drawn = Plotly.newPlot(plot, traces, whole, { displayModeBar: false, responsive: true, scrollZoom: false });
  plot.on("plotly_click", ({ points: [point] }) => {
    const of = point.data.meta || [], at = of.length > 1 ? of[point.pointNumber] : of[0];
    if (at !== undefined) plot.dispatchEvent(new CustomEvent("wherefrom", { bubbles: true, detail: at }));
  });
  return drawn;
}

function lines(data, configuration, metric, look, options) {
  const name = configuration.kl === "none" ? "no KL" : configuration.name, meta = [data.configurations.indexOf(configuration)];
  const { x, seeds, mean, low, high } = curveOf(data, configuration, metric), one = seeds.length < 2;
  const keep = (values) => (options.log ? values.map((v) => (v > 0 ? v : null)) : values);
  const hovertemplate = "step %{x}: %{y:.3g} %{customdata}<extra>%{fullData.name}</extra>";
  const stroke = (width, opacity) => ({ mode: "lines", opacity, meta, line: { color: look.color, width, dash: look.dash } });
  const traces = [];
  if (options.seeds !== "mean") {
    const chosen = seeds.filter(([seed]) => options.seeds === "each" || seed === options.seeds);
    for (const [seed, values] of chosen) {
      traces.push({ x, y: keep(options.smooth ? smoothed(values) : values), name: safe(`${name}, seed ${seed}`),
        ...stroke(options.seeds === "each" ? 1.1 : look.width, options.seeds === "each" ? 0.75 : 1),
        customdata: x.map(() => ""), hovertemplate });
    }
    return traces;
  }
  const quiet = { hoverinfo: "skip", mode: "lines", line: { width: 0, color: look.color }, meta };
  if (!one && !options.bare) {
    traces.push({ x, y: keep(high), ...quiet });
    traces.push({ x, y: keep(low), ...quiet, fill: "tonexty", fillcolor: rgba(look.color, 0.15) });
  }
  const range = one ? x.map(() => "(one seed)") : low.map((l, i) => `[${told(l)}, ${told(high[i])}]`);
  if (options.smooth) traces.push({ x, y: keep(mean), ...stroke(1, 0.35), hoverinfo: "skip" });
  traces.push({ x, y: keep(options.smooth ? smoothed(mean) : mean), ...stroke(look.width, 1),
    name: safe(name + (options.smooth ? ", smoothed" : "")), customdata: range, hovertemplate });
  const cut = cutOf(configuration, x);
  if (cut) {
    traces.push({ x: x.slice(-1), y: keep(mean).slice(-1), mode: "markers", meta, name: "cut", hovertemplate: `${safe(cut)}<extra>${safe(name)}</extra>`,
      marker: { symbol: "circle-open", size: 9, color: look.color, line: { width: 2 } } });
  }
  if (configuration.collapsed[0]) {
    traces.push({ x: x.slice(-1), y: keep(mean).slice(-1), mode: "markers", hoverinfo: "skip", meta,
      marker: { symbol: "x", size: 10, color: look.color } });
  }
  return traces;
}

const overSteps = (range, { log }, label) => ({ xaxis: { title: { text: "train step", font: { size: 11 } } },
  yaxis: { range, type: log ? "log" : "linear", title: { text: safe(label), font: { size: 11 } } } });

// Panels of one figure share their range, so that they can be compared.
function sharedRange(panels, log) {
  let low = Infinity, high = -Infinity;
  for (const traces of panels) {
    for (const trace of traces) {
      for (const y of trace.y) {
        if (y !== null && Number.isFinite(y) && (!log || y > 0)) { low = Math.min(low, y); high = Math.max(high, y); }
      }
    }
  }
  if (low > high) return undefined;
  if (log) return [Math.log10(low) - 0.05, Math.log10(high) + 0.05];
  if (low > 0 && low < 0.5 * high) low = 0;
  if (low === 0 && high === 0) return [-0.04, 1];
  const air = 0.04 * (high - low || 1);
  return [low - air, high + air];
}

function widened(range, span) {
  if (!range || range[1] - range[0] >= span) return range;
  const middle = (range[0] + range[1]) / 2;
  return [middle - span / 2, middle + span / 2];
}

const errors = (low, value, high, more) => ({ type: "data", symmetric: false, array: [low === null ? 0 : high - value],
  arrayminus: [low === null ? 0 : value - low], visible: low !== null, ...more });

// A value and its interval a row. `rows`: {name, value, low, high, wide: [low, high], look, told, at}.
function dots(rows) {
  const wide = rows.filter((r) => r.wide && r.wide[0] !== null).map((r) => ({
    x: [r.value], y: [safe(r.name)], mode: "markers", hoverinfo: "skip", meta: [r.at], opacity: 0.3, name: "over items",
    marker: { color: r.look.color, size: 1 },
    error_x: errors(r.wide[0], r.value, r.wide[1], { color: r.look.color, thickness: 8, width: 0 }) }));
  return [...wide, ...rows.map(({ name, value, low, high, look, told: text, at }) => ({
    x: [value], y: [safe(name)], mode: "markers", marker: { color: look.color, symbol: look.symbol, size: 9 }, meta: [at],
    error_x: errors(low, value, high, { color: look.color, thickness: 1.8, width: 4 }),
    hovertemplate: safe(text) + "<extra></extra>" }))];
}

function finalRow(data, configuration, metric, look) {
  const [value, low, high, seeds, from, to] = configuration.finals[metric];
  const interval = low === null ? "(one seed: no interval)" : `[${told(low)}, ${told(high)}]`;
  const items = from === null ? "" : `, over items [${told(from)}, ${told(to)}]`;
  return { name: configuration.name, value, low, high, wide: [from, to], look: look(configuration.kl), at: data.configurations.indexOf(configuration),
    told: `${configuration.name}: ${told(value)} ${interval}${items}, ${Object.keys(seeds).length} of ${configuration.seeds} seeds` };
}

function rangeOf(values) {
  const known = values.filter((v) => v !== null && v !== undefined && Number.isFinite(v));
  if (!known.length) return undefined;
  const low = Math.min(...known), high = Math.max(...known), air = Math.max(0.03 * (Math.abs(high) || 1), 0.06 * (high - low));
  return [low - air, high + air];
}

const rowsAxis = (names) => ({ categoryorder: "array", categoryarray: names.map(safe), tickfont: { size: 11.5 },
  range: [-0.7, names.length - 0.3] });

const axisOf = (c, axis) => (axis === "model" || axis === "backend" ? c[axis] : (c.axes || {})[axis]);
// A curve is cut where its shortest seed ends: at this step, of so many, for these seeds.
const cutOf = (c, x) => (c.open.length && x[x.length - 1] < c.steps
  ? `cut at step ${x[x.length - 1]} of ${c.steps}: ${c.open.map(([seed, state]) => `seed ${seed} is ${state}`).join(", ")}` : "");

// What lines of one picture differ in: betas of one KL term, KL terms, or both.
function lineLook(panels) {
  const own = panels.flat(), terms = own.filter((c) => c.kl !== "none"), kinds = unique(terms.map((c) => c.kl));
  const betas = unique(terms.map((c) => c.beta)).sort((a, b) => a - b);
  const byBeta = panels.every((each) => unique(each.map((c) => c.kl).filter((kl) => kl !== "none")).length < 2), look = byBeta ? ramp(betas) : looks(kinds);
  const of = (c) => (c.kl === "none" ? look("none") : look(byBeta ? c.beta : c.kl));
  const title = (c) => (c.kl === "none" ? "no KL" : byBeta ? `β ${c.beta}` : betas.length < 2 ? c.kl : c.name);
  return { of, items: [...new Map(own.map((c) => [title(c), of(c)]))] };
}

const FIGURES = {
  // Panels with a choice of their own: figures of a publication, redrawn.
  redrawn(place, { data, all, panels, alt }) {
    const look = lineLook(panels.map((p) => p.at.map((i) => all[i])));
    if (panels.some((p) => p.draws === "curves")) legend(place, look.items);
    place.classList.toggle("named", panels.some((p) => p.draws === "finals"));  // room for the names of rows
    const traces = panels.map(({ draws, metric, at }) => {
      const own = at.map((i) => all[i]);
      return draws === "curves" ? own.flatMap((c) => lines(data, c, metric, look.of(c), { seeds: "mean", bare: own.length > MAX_BANDS }))
        : dots(own.slice().reverse().map((c) => finalRow(data, c, metric, () => look.of(c))));
    });
    const range = (metric) => sharedRange(traces.filter((_, i) => panels[i].draws === "curves" && panels[i].metric === metric), false);
    return panels.map(({ title, draws, metric, at }, i) => {
      const names = at.map((k) => all[k].name).reverse();
      const label = { text: safe(data.metrics[metric].split(/[,(]/)[0]), font: { size: 10.5 } };
      const plot = panel(place, title, alt, draws === "finals" ? Math.max(130, 60 + 22 * at.length) : undefined);
      return () => draw(plot, traces[i], draws === "curves"
        ? { xaxis: { title: { text: "train step", font: { size: 10.5 } } }, yaxis: { range: range(metric), title: label } }
        : { margin: { l: 104, r: 12, t: 6, b: 30 }, yaxis: rowsAxis(names),
            xaxis: { zeroline: false, nticks: 4, tickangle: 0, range: widened(rangeOf(at.flatMap((k) => {
              const [value, low, high, , from, to] = all[k].finals[metric];
              return [value, low, high, from, to];
            })), LEAST_SPAN) } });
    });
  },

  curves(place, { data, shown, side, state, alt }) {
    if (side) {
      const known = side.filter((c) => c.curves[state.metric]);
      if (!known.length) return nothing(place);
      const values = unique(known.map((c) => axisOf(c, state.group)));
      const members = values.map((value) => known.filter((c) => axisOf(c, state.group) === value));
      const look = lineLook(members);
      legend(place, look.items);
      const drawn = members.map((each) => each.flatMap((c) =>
        lines(data, c, state.metric, look.of(c), { ...state, bare: each.length > MAX_BANDS })));
      const range = sharedRange(drawn, state.log);
      return values.map((value, i) => {
        const plot = panel(place, `${state.group} ${value}`, alt);
        return () => draw(plot, drawn[i], overSteps(range, state, data.metrics[state.metric]));
      });
    }
    const own = shown.filter((c) => c.curves[state.metric]);
    const byKl = state.panels === "kl";
    const panelOf = (c) => (byKl ? c.kl : c.beta), lineOf = (c) => (byKl ? c.beta : c.kl);
    const sorted = (values, numbers) => (numbers ? unique(values).sort((a, b) => a - b) : unique(values));
    const baseline = own.filter((c) => c.kl === "none"), rest = own.filter((c) => c.kl !== "none");
    const kinds = sorted(rest.map(lineOf), byKl), look = byKl ? ramp(kinds) : looks(kinds);
    const panels = sorted(rest.map(panelOf), !byKl).map((value) => ({
      title: byKl ? value : `β ${value}`, members: [...baseline, ...rest.filter((c) => panelOf(c) === value)],
    }));
    if (!panels.length && baseline.length) panels.push({ title: "no KL", members: baseline });
    if (!panels.length) return nothing(place);
    legend(place, [...(baseline.length ? [["no KL", look("none")]] : []),
      ...kinds.map((value) => [byKl ? `β ${value}` : value, look(value)])]);
    const drawn = panels.map(({ members }) => members.flatMap((c) =>
      lines(data, c, state.metric, look(c.kl === "none" ? "none" : lineOf(c)), state)));
    const range = sharedRange(drawn, state.log);
    return panels.map(({ title }, i) => {
      const plot = panel(place, title, alt);
      return () => draw(plot, drawn[i], overSteps(range, state, data.metrics[state.metric]));
    });
  },

  // ------------------------------------------------------------ measures, finals, stability

  // Small multiples: a panel for each measure and KL term, lines for betas, no KL in each.
  measures(place, { data, shown, state, metrics, alt }) {
    const measured = metrics.filter((m) => shown.some((c) => c.curves[m]));
    if (!measured.length) return nothing(place);
    const kinds = unique(shown.map((c) => c.kl)).filter((kl) => kl !== "none");
    const of = (m, kl) => shown.filter((c) => c.curves[m] && (c.kl === kl || c.kl === "none"));
    const terms = kinds.length ? kinds : ["none"], look = lineLook(terms.map((kl) => of(measured[0], kl)));
    legend(place, look.items);
    return measured.flatMap((m) => {
      const drawn = terms.map((kl) => of(m, kl).flatMap((c) => lines(data, c, m, look.of(c), state)));
      const range = sharedRange(drawn, state.log);
      return terms.map((kl, i) => {
        const plot = panel(place, kl === "none" ? "no KL" : kl, `${data.metrics[m]}. ${alt}`);
        return () => draw(plot, drawn[i], overSteps(range, state, data.metrics[m]));
      });
    });
  },

  finals(place, { data, shown: one, side, state, metrics, alt }) {
    const shown = side || one, called = (c) => (side ? `${axisOf(c, state.group)}: ${c.name}` : c.name);
    const [inside, outside, ...tasks] = metrics;
    const wanted = [inside, outside, ...(state.tasks ? tasks : [])].filter((m) => m && shown.some((c) => c.finals[m]));
    if (!wanted.length) return nothing(place);
    place.classList.add("wide");
    const look = looks(unique(shown.map((c) => c.kl)));
    const own = shown.filter((c) => wanted.some((m) => c.finals[m])).reverse();
    const before = data.baselines.filter((b) => shown.some((c) => c.model === b.model)).reverse();
    const names = [...before.map((b) => b.name), ...own.map(called)];
    return wanted.map((m) => {
      const plot = panel(place, data.metrics[m], alt, 60 + 24 * names.length);
      const base = before.filter((b) => b.finals[m] !== undefined), rows = own.filter((c) => c.finals[m]);
      const seeds = rows.flatMap((c) => Object.values(c.finals[m][3]).map((value) => [value, safe(called(c)), look(c.kl).color]));
      const traces = [...dots(rows.map((c) => ({ ...finalRow(data, c, m, look), name: called(c) }))),
        ...base.map((b) => ({ x: [b.finals[m]], y: [safe(b.name)], mode: "markers", name: "baseline",
          marker: { color: css("--none"), symbol: "star", size: 10 },
          hovertemplate: safe(`${b.name}: ${told(b.finals[m])}${b.note ? `. ${b.note}` : ""}`) + "<extra></extra>" })),
        { x: seeds.map((s) => s[0]), y: seeds.map((s) => s[1]), mode: "markers", hoverinfo: "skip", name: "seeds",
          marker: { color: seeds.map((s) => s[2]), symbol: "line-ns-open", size: 8, opacity: 0.6 } }];
      const range = rangeOf([...rows.flatMap((c) => [...c.finals[m].slice(0, 3), ...Object.values(c.finals[m][3]), ...c.finals[m].slice(4)]),
        ...base.map((b) => b.finals[m])]);
      const shapes = base.map((b) => ({ type: "line", x0: b.finals[m], x1: b.finals[m], yref: "paper", y0: 0, y1: 1,
        line: { color: css("--none"), width: 1, dash: "dot" } }));
      return () => draw(plot, traces, { margin: { l: side ? 190 : 110, r: 12, t: 6, b: 34 }, shapes,
        xaxis: { zeroline: false, range }, yaxis: rowsAxis(names) });
    });
  },

  stability(place, { data, all, shown, alt }) {
    const index = new Map(all.map((c, i) => [c, i])), look = looks(unique(shown.map((c) => c.kl)));
    const measures = Object.values(data.stability).filter(({ values }) => shown.some((c) => values[index.get(c)]));
    if (!measures.length) return nothing(place);
    return measures.map(({ title, values }) => {
      const rows = shown.filter((c) => values[index.get(c)]).reverse().map((c) => {
        const [value, low, high] = values[index.get(c)];
        return { name: c.name, value, low, high, look: look(c.kl), at: index.get(c),
          told: `${c.name}: ${told(value)}${low === null ? "" : ` [${told(low)}, ${told(high)}]`}` };
      });
      const plot = panel(place, title, alt, 60 + 24 * rows.length);
      return () => draw(plot, dots(rows), { margin: { l: 110, r: 12, t: 6, b: 34 }, yaxis: rowsAxis(rows.map((r) => r.name)),
        xaxis: { zeroline: false, range: rangeOf([0, ...rows.flatMap((r) => [r.value, r.low, r.high])]) } });
    });
  },

  // ------------------------------------------------------------ beside the paper, across libraries

  published(place, { data, alt }) {
    const found = data.published.filter((p) => p.ours).reverse();
    if (!found.length) return nothing(place);
    place.classList.add("one");
    const ours = { color: css("--c0"), symbol: "circle" };
    legend(place, [["ours, with 95 % interval", { ...ours, dash: "solid" }], ["published", { color: css("--c2"), symbol: "diamond" }]], true);
    const rows = found.map((p) => {
      const [value, low, high] = p.ours.map(percent);
      return { name: p.name, value, low, high, look: ours, at: undefined,
        told: `${p.statement} Ours ${told(value)} %${low === null ? "" : ` [${told(low)}, ${told(high)}]`}` };
    });
    const plot = panel(place, "relative improvement (%)", alt, 80 + 34 * rows.length);
    const theirs = { x: found.map((p) => percent(p.published)), y: found.map((p) => safe(p.name)), mode: "markers", name: "published",
      marker: { color: css("--c2"), symbol: "diamond", size: 11 }, text: found.map((p) => safe(`${p.where}: ${told(percent(p.published))} %`)),
      hovertemplate: "published, %{text}<extra></extra>" };
    return [() => draw(plot, [...dots(rows), theirs], { margin: { l: 150, r: 12, t: 6, b: 34 }, yaxis: rowsAxis(rows.map((r) => r.name)) })];
  },

  libraries(place, { data, alt }) {
    if (!data.libraries.length) return nothing(place);
    const names = unique(data.libraries.flatMap((p) => Object.keys(p.libraries))), look = looks(names);
    legend(place, names.map((name) => [name, look(name)]));
    const drawn = data.libraries.map((p) => Object.entries(p.libraries).map(([name, y]) => ({ x: p.x, y, mode: "lines", name: safe(name),
      line: { color: look(name).color, dash: look(name).dash, width: 2.2 }, hovertemplate: "%{x} rollouts: %{y:.4g}<extra>%{fullData.name}</extra>" })));
    const range = sharedRange(drawn, false);
    return data.libraries.map((p, i) => {
      const plot = panel(place, p.title, `${p.label}. ${alt}`);
      return () => draw(plot, drawn[i], { xaxis: { title: { text: "rollouts seen", font: { size: 11 } } },
        yaxis: { range, title: { text: safe(p.label), font: { size: 11 } } } });
    });
  },

  imported(place, { data, alt }) {
    if (!(data.imported || []).length) return nothing(place);
    const names = unique(data.imported.flatMap((p) => p.lines.map((line) => line.name))), look = looks(names);
    legend(place, names.map((name) => [name, look(name)]));
    return data.imported.map((p) => {
      const plot = panel(place, p.title, alt);
      const lines = p.lines.map((line) => ({ x: line.x, y: line.y, mode: "lines", name: safe(line.name),
        line: { color: look(line.name).color, dash: look(line.name).dash, width: line.imported ? 3 : 1.4 },
        hovertemplate: "step %{x}: %{y:.4g}<extra>%{fullData.name}</extra>" }));
      return () => draw(plot, lines, { xaxis: { title: { text: "step", font: { size: 11 } } } });
    });
  },

  phases(place, { data, alt }) {
    if (!(data.phases || []).length) return nothing(place);
    const scale = [[0, "#e3f4ee"], [0.5, "#ffe08a"], [1, "#a33f00"]];
    return data.phases.map((p) => {
      const plot = panel(place, p.title, alt, 280), rows = p.y.map((_, i) => i), columns = p.x.map((_, i) => i);
      const fields = rows.flatMap((row) => columns.map((column) => [row, column])).filter(([row, column]) => p.z[row][column] !== null);
      const bounds = p.boundary.flatMap((y, x) => (y === null ? [] : [{ type: "line", x0: x - 0.48, x1: x + 0.48, y0: y, y1: y,
        line: { color: css("--text"), width: 4 } }]));
      return () => draw(plot, [{ type: "heatmap", z: p.z, x: columns, y: rows, zmin: 0, zmax: 1, colorscale: scale, showscale: false,
        xgap: 2, ygap: 2, text: p.hover.map((row) => row.map(safe)), hovertemplate: "%{text}<extra></extra>" }], {
        margin: { l: 54, r: 8, t: 6, b: 38 }, shapes: bounds,
        annotations: fields.map(([row, column]) => ({ x: column, y: row, text: safe(p.text[row][column]), showarrow: false,
          font: { size: 12, color: p.z[row][column] > 0.75 ? "#ffffff" : "#16191d" } })),
        xaxis: { tickvals: columns, ticktext: p.x, title: { text: safe(p.xtitle), font: { size: 11 } }, showgrid: false, zeroline: false },
        yaxis: { tickvals: rows, ticktext: p.y, title: { text: "β", font: { size: 11 } }, showgrid: false, zeroline: false },
      });
    });
  },

  // ------------------------------------------------------------ the laboratory, theory, searches

  gradients(place, { data, metrics, alt }) {
    place.classList.add("wide");
    const rows = data.laboratory.filter((r) => r.paper || !metrics.includes("paper")).reverse();
    const names = rows.map((r) => safe(r.label));
    const titles = { bias: "bias of the gradient", variance: "variance of the gradient" };
    return ["a", "b"].flatMap((p) => Object.keys(titles).map((kind) => {
      const plot = panel(place, `${titles[kind]}, d/d${p}`, alt, 70 + 21 * rows.length);
      const marks = (key, open) => {
        const own = rows.filter((r) => r[p][key] > 0);
        return { x: own.map((r) => r[p][key]), y: own.map((r) => safe(r.label)), mode: "markers",
          name: open ? "sampled" : "exact",
          marker: { size: open ? 10 : 7, symbol: open ? "circle-open" : "circle",
            color: own.map((r) => (r.paper ? css("--c0") : css("--none"))) },
          hovertemplate: "%{y}: %{x:.3g}<extra>%{fullData.name}</extra>" };
      };
      return () => draw(plot, [marks(kind, false), marks(`sampled_${kind}`, true)], {
        margin: { l: 118, r: 12, t: 6, b: 34 }, xaxis: { type: "log", dtick: 1, exponentformat: "power" },
        yaxis: { categoryorder: "array", categoryarray: names, tickfont: { size: 11 }, range: [-0.7, rows.length - 0.3] },
      });
    }));
  },

  predicted(place, { data, all, metrics, alt }) {
    const [metric] = metrics;
    const own = all.filter((c) => c.predicted !== null && c.finals[metric]);
    if (!own.length) return nothing(place);
    place.classList.add("square");
    const kinds = unique(own.map((c) => c.kl)), look = looks(kinds);
    legend(place, kinds.map((kl) => [kl, look(kl)]), true);
    const values = own.flatMap((c) => [c.predicted, ...c.finals[metric].slice(0, 3)]).filter((v) => v !== null);
    const index = new Map(all.map((c, i) => [c, i]));
    const low = Math.min(...values) - 0.03, high = Math.max(...values) + 0.03;
    const plot = panel(place, data.metrics[metric], alt, 430);
    return [() => draw(plot, [
      { x: [low, high], y: [low, high], mode: "lines", hoverinfo: "skip", line: { color: css("--none"), dash: "dash", width: 1.2 } },
      ...kinds.map((kl) => {
        const members = own.filter((c) => c.kl === kl), ends = members.map((c) => c.finals[metric]);
        return { x: members.map((c) => c.predicted), y: ends.map((e) => e[0]), mode: "markers",
          meta: members.map((c) => index.get(c)), marker: { color: look(kl).color, symbol: look(kl).symbol, size: 10 },
          error_y: { type: "data", symmetric: false, color: look(kl).color, thickness: 1.4, width: 4,
            array: ends.map((e) => (e[2] === null ? 0 : e[2] - e[0])), arrayminus: ends.map((e) => (e[1] === null ? 0 : e[0] - e[1])) },
          text: members.map((c) => safe(`${c.study}, ${c.setting}, ${c.name}`)),
          hovertemplate: "%{text}: predicted %{x:.3f}, observed %{y:.3f}<extra></extra>" };
      }),
    ], { xaxis: { title: { text: "predicted", font: { size: 11 } }, range: [low, high] },
         yaxis: { title: { text: "observed", font: { size: 11 } }, range: [low, high] } })];
  },

  trials(place, { data, alt }) {
    const names = unique(data.tune.flatMap((p) => p.series.map((s) => s.name))), look = looks(names);
    if (!names.length) return nothing(place);
    legend(place, names.map((name) => [name, look(name)]));
    const title = (text) => ({ text: safe(text), font: { size: 11 } });
    return data.tune.map((p) => {
      const plot = panel(place, p.title, alt, 300);
      return () => draw(plot, p.series.map((s) => {
        const { color, symbol, dash } = look(s.name);
        return { x: s.x, y: s.y, mode: s.mode, name: safe(s.name), text: (s.text || s.x.map(String)).map(safe),
          marker: { color, symbol, size: 8 }, line: { color, dash, width: 2, shape: p.step ? "hv" : "linear" },
          hovertemplate: "%{text}: %{y:.4g}<extra>%{fullData.name}</extra>" };
      }), { xaxis: { title: title(p.xtitle), type: p.log ? "log" : undefined }, yaxis: { title: title(p.ytitle) } });
    });
  },
};

function nothing(place) {
  place.append(element("p", "Nothing was measured for this choice yet.", { class: "nothing" }));
  return [];
}
