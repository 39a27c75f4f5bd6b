"use strict";
// Keeps a served page up to date: asks for its version, and loads the new one where the reader was.

(() => {
  const RUNNING = 3000, RESTING = 15000, STILL = 4000, KEPT = "orch-live";
  const began = document.documentElement.dataset.version || null;
  let version = began, paused = false, waiting = false, touched = 0, failed = 0;

  const make = (name, text, attributes) => {
    const node = document.createElement(name);
    if (text !== undefined) node.textContent = text;
    for (const [key, value] of Object.entries(attributes || {})) node.setAttribute(key, value);
    return node;
  };

  // -------------------------------------------------------------- the bar

  const style = make("style", `
    #live { position: fixed; right: 0; bottom: 0; z-index: 9; max-width: 100%; display: flex; flex-wrap: wrap;
      gap: .2rem .9rem; align-items: center; padding: .35rem .8rem; font-size: .85rem; line-height: 1.5;
      background: Canvas; color: CanvasText; border: 1px solid GrayText; border-right: 0; border-bottom: 0;
      border-top-left-radius: 6px; }
    #live p { margin: 0; } #live a { color: LinkText; } #live button { font: inherit; }
    body { padding-bottom: 3rem; }
    @media print { #live { display: none; } }`);
  const bar = make("aside", undefined, { id: "live", "aria-label": "Live updates" });
  const line = make("p", "Live"), told = make("p", "", { role: "status" });
  const pause = make("button", "Pause updates", { type: "button", "aria-pressed": "false" });
  const show = make("button", "Show the newer page", { type: "button", hidden: "" });
  const mlflow = make("a", "MLflow", { hidden: "", target: "_blank", rel: "noopener" });
  bar.append(line, told, show, pause, mlflow);
  document.head.append(style);
  document.body.append(bar);

  const say = (text) => { if (told.textContent !== text) told.textContent = text; };
  const isHere = (host) => ["localhost", "127.0.0.1", "[::1]"].includes(host);
  function link(address) {
    if (!address) return;
    const far = isHere(new URL(address).hostname) && !isHere(location.hostname);
    mlflow.href = far ? "" : address;  // MLflow listens on the other machine's loopback only
    mlflow.hidden = far;
  }

  function setPaused(value) {
    paused = value;
    pause.setAttribute("aria-pressed", String(paused));
    pause.textContent = paused ? "Go on updating" : "Pause updates";
    if (!paused && waiting) renew();
  }
  pause.addEventListener("click", () => setPaused(!paused));
  show.addEventListener("click", () => renew());

  // -------------------------------------------------------------- where the reader was

  const controls = () => [...document.querySelectorAll("main [name], #filters [name]")];
  const place = (node) => node.closest("figure")?.id || node.closest("form")?.id || "";
  const folds = () => [...document.querySelectorAll("details")];
  const titleOf = (fold) => (fold.closest("section")?.id || "") + "|"
    // Counts in a title change from page to page; the table is the same.
    + (fold.querySelector("summary")?.textContent || "").replace(/[\d,]+/g, "#");
  const searches = () => [...document.querySelectorAll("input[type=search]")];

  function keep() {
    const active = document.activeElement;
    const kept = {
      y: scrollY, height: document.documentElement.scrollHeight, paused,
      chosen: controls().map((n) => [place(n), n.name, n.type === "checkbox" ? n.checked : n.value]),
      open: folds().map((fold) => [titleOf(fold), fold.open]),
      searched: searches().map((n) => n.value),
      focus: active && active.name ? [place(active), active.name] : active && active.id ? ["", "#" + active.id] : null,
      anchor: anchor(),
    };
    try { sessionStorage.setItem(KEPT, JSON.stringify(kept)); } catch { /* then it starts at the top */ }
  }

  // The nearest thing with a name above the top of the window, and how far it is from there.
  function anchor() {
    let found = null;
    for (const node of document.querySelectorAll("section[id], figure[id]")) {
      const top = node.getBoundingClientRect().top;
      if (top <= 60) found = [node.id, top];
    }
    return found;
  }

  const settled = () => new Promise((resolve) => {
    const ready = () => document.documentElement.dataset.ready === "yes";
    const until = Date.now() + 20000;
    const look = () => (ready() || Date.now() > until ? resolve() : setTimeout(look, 30));
    look();
  });

  async function restore() {
    let kept = null;
    try { kept = JSON.parse(sessionStorage.getItem(KEPT)); sessionStorage.removeItem(KEPT); } catch { /* none */ }
    if (!kept) return;
    setPaused(kept.paused);
    for (const [where, name, value] of kept.chosen) {
      const node = controls().find((n) => place(n) === where && n.name === name);
      if (!node) continue;
      if (node.type === "checkbox" ? node.checked === value : node.value === value) continue;
      if (node.type === "checkbox") node.checked = value;
      // The newer page may not have this choice any more.
      else if (![...(node.options || [])].some((option) => option.value === value)) continue;
      else node.value = value;
      // The page's own listeners redraw the figures.
      node.dispatchEvent(new Event("change", { bubbles: true }));
    }
    const open = new Map(kept.open);
    for (const fold of folds()) if (open.has(titleOf(fold))) fold.open = open.get(titleOf(fold));
    searches().forEach((input, i) => {
      if (!kept.searched[i]) return;
      input.value = kept.searched[i];
      input.dispatchEvent(new Event("input", { bubbles: true }));
    });
    const back = () => {
      const node = kept.anchor && document.getElementById(kept.anchor[0]);
      scrollTo(0, node ? scrollY + node.getBoundingClientRect().top - kept.anchor[1] : kept.y);
    };
    // Twice: figures are drawn late, and their heights move what stands below.
    back();
    await settled();
    back();
    if (kept.focus) {
      const [where, name] = kept.focus;
      const node = name.startsWith("#") ? document.getElementById(name.slice(1))
        : controls().find((n) => place(n) === where && n.name === name);
      node?.focus({ preventScroll: true });
    }
    setTimeout(() => say(`Updated ${new Date().toLocaleTimeString()}`), 300);
  }

  // -------------------------------------------------------------- asking

  for (const kind of ["pointerdown", "keydown", "wheel", "touchmove", "input"]) {
    addEventListener(kind, () => { touched = Date.now(); }, { passive: true });
  }
  const busy = () => Date.now() - touched < STILL
    // A field that has the focus is in use longer than the last key in it says.
    || ["SELECT", "INPUT"].includes(document.activeElement?.tagName) && Date.now() - touched < 5 * STILL;

  function renew() {
    keep();
    location.reload();
  }

  function offer() {
    waiting = true;
    if (paused) {
      show.hidden = false;
      say("There is a newer page");
    } else if (!busy()) renew();
  }

  async function ask() {
    let gap = RESTING;
    try {
      const answer = await fetch("/version", { cache: "no-store" });
      if (!answer.ok) throw new Error(answer.status);
      const now = await answer.json();
      failed = 0;
      line.textContent = now.line || "Live";
      link(now.mlflow);
      if (now.fault) say(now.fault);
      // A page without a version of its own: the first answer counts as its version.
      if (version === null) version = now.version;
      else if (now.version && now.version !== version) offer();
      if (now.live || waiting) gap = RUNNING;
    } catch {
      // A server that has been gone for a minute is asked less often.
      if (failed < 20) gap = RUNNING;
      if (++failed === 2) { line.textContent = "Not live"; say("The server does not answer; this is its last page"); }
    }
    setTimeout(ask, document.hidden ? RESTING : gap);
  }

  restore();
  ask();
})();
