"use strict";
// Pictures of the data. Each function fills a figure's `.panels`; page.js says what is chosen.

// Okabe and Ito's palette; its blue and black are told by the theme, to be seen on a dark ground.
const OKABE_ITO = [null, "#E69F00", "#D55E00", "#CC79A7", "#56B4E9", "#009E73"];
const DASHES = ["solid", "dash", "dot", "dashdot", "longdash", "longdashdot"];
const SYMBOLS = ["circle", "square", "diamond", "triangle-up", "cross", "triangle-down"];
const USUAL = ["k1.reward", "k3.loss", "k1.loss", "k3.reward", "k1.both", "k3.both"];

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const safe = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
const rgba = (hex, alpha) =>
  `rgba(${[1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16)).join(",")},${alpha})`;
const told = (value) => (value === null || value === undefined ? "–" : value.toPrecision(3));
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
  const of = (value) => {
    if (value === "none" || value === null) {
      return { color: css("--none"), dash: "solid", symbol: "circle-open", width: 1.6 };
    }
    const i = places.indexOf(value);
    return {
      color: OKABE_ITO[i % OKABE_ITO.length] || css("--blue"), symbol: SYMBOLS[i % SYMBOLS.length], width: 2.2,
      dash: DASHES[(i < OKABE_ITO.length ? i : i + 1) % DASHES.length],
    };
  };
  return of;
}

// Between the controls of a figure and its panels.
function legend(place, items) {
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
    picture.append(svg("line", { x1: 0, x2: 30, y1: 6, y2: 6, stroke: look.color, "stroke-width": 2.5,
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
    margin: { l: 44, r: 10, t: 6, b: 34 }, hovermode: "closest",
    hoverlabel: { bgcolor: css("--raised"), bordercolor: css("--line"), font: { color: css("--text") } },
    ...layout, xaxis: { ...axis, ...layout.xaxis }, yaxis: { ...axis, ...layout.yaxis },
  };
  return Plotly.newPlot(plot, traces, whole, { displayModeBar: false, responsive: true, scrollZoom: false });
}

function lines(data, configuration, metric, look, options) {
  const name = configuration.kl === "none" ? "no KL" : configuration.name;
  const curve = configuration.curves[metric];
  const x = data.grids[curve.g];
  const keep = (values) => (options.log ? values.map((v) => (v > 0 ? v : null)) : values);
  const seeds = Object.entries(curve.s);
  const mean = keep(curve.m || seeds[0][1]);
  const traces = [];
  const quiet = { hoverinfo: "skip", mode: "lines", line: { width: 0, color: look.color } };
  if (curve.l && !options.seeds) {
    traces.push({ x, y: keep(curve.h), ...quiet });
    traces.push({ x, y: keep(curve.l), ...quiet, fill: "tonexty", fillcolor: rgba(look.color, 0.16) });
  }
  if (options.seeds && seeds.length > 1) {
    for (const [seed, values] of seeds) {
      traces.push({ x, y: keep(values), mode: "lines", opacity: 0.55, name: safe(`${name}, seed ${seed}`),
        line: { color: look.color, width: 1, dash: look.dash } });
    }
  }
  const range = curve.l ? curve.l.map((low, i) => `[${told(low)}, ${told(curve.h[i])}]`) : mean.map(() => "one seed");
  traces.push({ x, y: mean, mode: x.length > 1 ? "lines" : "markers", name: safe(name), customdata: range,
    line: { color: look.color, width: look.width, dash: look.dash }, marker: { color: look.color, symbol: look.symbol },
    hovertemplate: "step %{x}: %{y:.4g} %{customdata}<extra>%{fullData.name}</extra>" });
  if (configuration.collapsed[0]) {
    traces.push({ x: x.slice(-1), y: mean.slice(-1), mode: "markers", hoverinfo: "skip",
      marker: { symbol: "x", size: 10, color: look.color } });
  }
  return traces;
}

const overSteps = (range, { log }) => ({ xaxis: { title: { text: "train step", font: { size: 11 } } },
  yaxis: { range, type: log ? "log" : "linear" } });

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
  const air = 0.04 * (high - low || 1);
  return [low - air, high + air];
}

// Mean and interval of each configuration, and a small mark for each seed.
function dots(configurations, metric, look) {
  const traces = configurations.map((c) => {
    const [mean, low, high, seeds] = c.finals[metric], { color, symbol } = look(c.kl);
    const interval = low === null ? "(one seed: no interval)" : `[${told(low)}, ${told(high)}]`;
    return { x: [mean], y: [safe(c.name)], mode: "markers", marker: { color, symbol, size: 9 },
      error_x: { type: "data", symmetric: false, array: [low === null ? 0 : high - mean],
        arrayminus: [low === null ? 0 : mean - low], color, thickness: 1.8, width: 4, visible: low !== null },
      hovertemplate: safe(`${c.name}: ${told(mean)} ${interval}, ${seeds.length} of ${c.seeds} seeds`) + "<extra></extra>" };
  });
  const marks = configurations.flatMap((c) => c.finals[metric][3].map((value) => [value, safe(c.name), look(c.kl).color]));
  return [...traces, { x: marks.map((m) => m[0]), y: marks.map((m) => m[1]), mode: "markers", hoverinfo: "skip",
    marker: { color: marks.map((m) => m[2]), symbol: "line-ns-open", size: 8, opacity: 0.6 } }];
}

function rangeOf(configurations, metric) {
  const values = configurations.flatMap((c) => (c.finals[metric] || []).flat()).filter((v) => v !== null);
  const low = Math.min(...values), high = Math.max(...values), air = Math.max(0.03, 0.06 * (high - low));
  return [low - air, high + air];
}

const FIGURES = {
  curves(place, { data, shown, state, alt }) {
    const own = shown.filter((c) => c.curves[state.metric]);
    const byKl = state.panels === "kl";
    const panelOf = (c) => (byKl ? c.kl : c.beta), lineOf = (c) => (byKl ? c.beta : c.kl);
    const sorted = (values, numbers) => (numbers ? unique(values).sort((a, b) => a - b) : unique(values));
    const baseline = own.filter((c) => c.kl === "none"), rest = own.filter((c) => c.kl !== "none");
    const kinds = sorted(rest.map(lineOf), byKl), look = looks(kinds);
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
      return () => draw(plot, drawn[i], overSteps(range, state));
    });
  },

  measures(place, { data, shown, state, metrics, alt }) {
    const kinds = unique(shown.map((c) => c.kl)), look = looks(kinds);
    const betas = unique(shown.map((c) => c.beta).filter((b) => b !== null)).sort((a, b) => a - b);
    const dash = (c) => DASHES[Math.max(0, betas.indexOf(c.beta)) % DASHES.length];
    const panels = metrics.filter((m) => shown.some((c) => c.curves[m]));
    if (!panels.length) return nothing(place);
    legend(place, [...kinds.map((kl) => [kl === "none" ? "no KL" : kl, { ...look(kl), dash: "solid" }]),
      ...(betas.length > 1 ? betas.map((beta, i) => [`β ${beta}`, { color: css("--none"), dash: DASHES[i % DASHES.length] }]) : [])]);
    return panels.map((m) => {
      const plot = panel(place, data.metrics[m], alt);
      const traces = shown.filter((c) => c.curves[m]).flatMap((c) => lines(data, c, m, { ...look(c.kl), dash: dash(c) }, state));
      return () => draw(plot, traces, overSteps(sharedRange([traces], state.log), state));
    });
  },

  finals(place, { data, shown, state, metrics, alt }) {
    const [inside, outside, ...tasks] = metrics;
    const wanted = [inside, outside, ...(state.tasks ? tasks : [])].filter((m) => m && shown.some((c) => c.finals[m]));
    if (!wanted.length) return nothing(place);
    place.classList.add("wide");
    const look = looks(unique(shown.map((c) => c.kl)));
    const rows = shown.filter((c) => wanted.some((m) => c.finals[m])).reverse();
    const height = 60 + 24 * rows.length;
    return wanted.map((m) => {
      const plot = panel(place, data.metrics[m], alt, height);
      return () => draw(plot, dots(rows.filter((c) => c.finals[m]), m, look), {
        margin: { l: 110, r: 12, t: 6, b: 34 }, xaxis: { zeroline: false, range: rangeOf(rows, m) },
        yaxis: { categoryorder: "array", categoryarray: rows.map((c) => safe(c.name)), tickfont: { size: 11.5 },
          range: [-0.7, rows.length - 0.3] },
      });
    });
  },

  gradients(place, { data, alt }) {
    place.classList.add("wide");
    const rows = data.laboratory.slice().reverse();
    const names = rows.map((r) => safe(r.label));
    const titles = { bias: "bias of the gradient", variance: "variance of the gradient" };
    return ["a", "b"].flatMap((p) => Object.keys(titles).map((kind) => {
      const plot = panel(place, `${titles[kind]}, d/d${p}`, alt, 70 + 21 * rows.length);
      const marks = (key, open) => {
        const own = rows.filter((r) => r[p][key] > 0);
        return { x: own.map((r) => r[p][key]), y: own.map((r) => safe(r.label)), mode: "markers",
          name: open ? "sampled" : "exact",
          marker: { size: open ? 10 : 7, symbol: open ? "circle-open" : "circle",
            color: own.map((r) => (r.paper ? css("--blue") : css("--none"))) },
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
    legend(place, kinds.map((kl) => [kl, { ...look(kl), dash: "solid" }]));
    const values = own.flatMap((c) => [c.predicted, ...c.finals[metric].slice(0, 3)]).filter((v) => v !== null);
    const low = Math.min(...values) - 0.03, high = Math.max(...values) + 0.03;
    const plot = panel(place, data.metrics[metric], alt, 430);
    return [() => draw(plot, [
      { x: [low, high], y: [low, high], mode: "lines", hoverinfo: "skip", line: { color: css("--none"), dash: "dash", width: 1.2 } },
      ...kinds.map((kl) => {
        const members = own.filter((c) => c.kl === kl), ends = members.map((c) => c.finals[metric]);
        return { x: members.map((c) => c.predicted), y: ends.map((e) => e[0]), mode: "markers",
          marker: { color: look(kl).color, symbol: look(kl).symbol, size: 10 },
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
