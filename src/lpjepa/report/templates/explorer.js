// The target explorer: three sliders and a choice of scale move one target; the runs are points on its curves.
(() => {
  "use strict";
  const holder = document.getElementById("explorer");
  if (!holder) return;
  const runs = JSON.parse(document.getElementById("explorer-data").textContent);
  const $ = (id) => document.getElementById(id);
  const ACTIVE = [0.001, 0.995];
  const logit = (a) => Math.log(a / (1 - a)), expit = (x) => 1 / (1 + Math.exp(-x));
  const clamp = (x, low, high) => Math.min(high, Math.max(low, x));
  // The last of mu and the active fraction that the reader set is held while p and sigma move.
  const state = { p: 1, mu: 0, active: 0.5, scale: "gn", held: "active", axis: "mu" };

  function settle() {
    if (state.held === "active") {
      const target = RGG.fromActive(state.active, state.p, state.scale);
      state.mu = target.mu;
      state.sigma = target.sigma;
    } else {
      state.sigma = RGG.scaleFor(state.mu, state.p, state.scale);
      state.active = RGG.describe(state.mu, state.sigma, state.p).active;
    }
  }

  const matches = (run) => Math.abs(run.p - state.p) < 1e-9 && (run.rule === state.scale
    || (typeof state.scale === "number" && Math.abs(run.sigma - state.scale) < 1e-9));

  function range() {
    const low = state.scale === "rgn" ? 0.01 : 0.003;
    const ends = [RGG.fromActive(low, state.p, state.scale).mu, RGG.fromActive(0.97, state.p, state.scale).mu];
    const shown = runs.filter(matches).map((run) => run.mu).concat(state.mu);
    return [Math.min(ends[0], ...shown), Math.max(ends[1], ...shown)];
  }

  function reflect() {
    const ends = [RGG.fromActive(ACTIVE[0], state.p, state.scale).mu, RGG.fromActive(ACTIVE[1], state.p, state.scale).mu];
    const mu = $("mu"), span = ends[1] - ends[0];
    const step = Math.pow(10, Math.floor(Math.log10(span / 200)));  // ends on its multiples: round values
    mu.step = step;
    mu.min = Math.floor(Math.min(ends[0], state.mu) / step) * step;
    mu.max = Math.ceil(Math.max(ends[1], state.mu) / step) * step;
    const say = (id, value, number, text) => {
      if (document.activeElement !== $(id)) $(id).value = value;
      if (document.activeElement !== $(`${id}-number`)) $(`${id}-number`).value = number;
      $(id).setAttribute("aria-valuetext", text);
    };
    say("mu", state.mu, +state.mu.toPrecision(5), `mu ${state.mu.toFixed(3)}`);
    say("p", Math.log2(state.p), +state.p.toPrecision(5), `p ${state.p.toPrecision(3)}`);
    say("active", logit(state.active), +(100 * state.active).toPrecision(5), `${(100 * state.active).toPrecision(3)} per cent active`);
    $("sigma-number").disabled = typeof state.scale !== "number";
    if (typeof state.scale !== "number") $("sigma-number").value = +state.sigma.toPrecision(5);
    const d = RGG.describe(state.mu, state.sigma, state.p);
    for (const key of ["active", "atom", "l1", "mean", "variance", "entropy"])
      $(`value-${key}`).textContent = Chart.show(+d[key].toPrecision(4));
    $("value-sigma").textContent = Chart.show(+state.sigma.toPrecision(4));
    for (const chip of holder.querySelectorAll(".chip"))
      chip.setAttribute("aria-pressed", String(isAt(runs[Number(chip.dataset.run)])));
    return d;
  }

  const isAt = (run) => matches(run) && Math.abs(run.mu - state.mu) < 1e-6 * (1 + Math.abs(run.mu));

  function drawDensity(d) {
    const { mu, sigma, p } = state;
    let high = Math.max(mu, 0) + 2 * sigma;  // up to where 0.5 % of the active mass is left
    while (1 - RGG.describe(mu - high, sigma, p).active / d.active < 0.995 && high < 1e4) high *= 1.15;
    const xs = Array.from({ length: 241 }, (_, i) => high * Math.pow(i / 240, 1.5));
    if (mu > 0) xs.push(mu);
    xs.sort((a, b) => a - b);
    const ys = xs.map((x) => RGG.density(x, mu, sigma, p));
    const top = 1.15 * Math.max(...ys);
    Chart.draw($("chart-density"), {
      title: `Density of the target: ${(100 * d.atom).toPrecision(3)} per cent exactly zero, the rest spread over positive values`,
      xlabel: "feature value x", x: [-0.05 * high, high], y: [0, top], height: 250,
      draw(pen) {
        pen.area(xs, ys, "fill");
        pen.line(xs, ys, "curve");
        pen.vertical(0, "atom", d.atom * top);
        pen.point(0, d.atom * top, "atom-head", 0, "", 6);
        pen.note(0, d.atom * top, `P(x = 0) = ${d.atom.toPrecision(3)}`);
      },
    });
  }

  const PANELS = [
    { id: "chart-l0", key: "active", name: "active fraction \u2113\u2080", y: [0, 1] },
    { id: "chart-l1", key: "l1", name: "\u2113\u2081 sparsity metric", y: [0, null] },
    { id: "chart-variance", key: "variance", name: "variance", y: [0, null] },
    { id: "chart-entropy", key: "entropy", name: "entropy (nats)", y: [null, null] },
  ];

  function drawPanels(d) {
    const onMu = state.axis === "mu";
    const [low, high] = onMu ? range() : [0.003, 1];
    const at = Array.from({ length: 121 }, (_, i) => i / 120);
    const targets = at.map((u) => {
      if (onMu) { const mu = low + u * (high - low); return { mu, sigma: RGG.scaleFor(mu, state.p, state.scale) }; }
      return RGG.fromActive(Math.min(0.9995, low * Math.pow(high / low, u)), state.p, state.scale);
    });
    const curve = targets.map((t) => RGG.describe(t.mu, t.sigma, state.p));
    const xs = targets.map((t, i) => (onMu ? t.mu : curve[i].active));
    const place = (run) => (onMu ? run.mu : run.predicted.active);
    for (const panel of PANELS) {
      const ys = curve.map((c) => c[panel.key]);
      const near = runs.filter((run) => place(run) >= low && place(run) <= high);
      const all = ys.concat(near.flatMap((run) => [run.predicted[panel.key], run.measured[panel.key]]))
        .filter((v) => typeof v === "number");
      const pad = 0.08 * (Math.max(...all) - Math.min(...all) || 1);
      const y = [panel.y[0] === null ? Math.min(...all) - pad : panel.y[0],
        panel.y[1] === null ? Math.max(...all) + pad : panel.y[1]];
      Chart.draw($(panel.id), {
        title: `${panel.name} of the target; now ${d[panel.key].toPrecision(3)}`,
        xlabel: onMu ? "mean shift \u03bc" : "active fraction of the target (%)",
        tickText: onMu ? undefined : (v) => Chart.show(100 * v),
        x: [low, high], y, logX: !onMu, height: 200,
        draw(pen) {
          pen.line(xs, ys, "curve");
          const here = onMu ? state.mu : state.active;
          pen.vertical(here, "here");
          for (const run of near) {
            const other = matches(run) ? "" : " other";
            const x = place(run), predicted = run.predicted[panel.key], measured = run.measured[panel.key];
            const named = (what, v) => `${run.name}: ${panel.name} ${v.toPrecision(3)} (${what})`;
            pen.point(x, predicted, `ring run-${run.colour}${other}`, run.shape, named("predicted by its target", predicted));
            if (typeof measured === "number")
              pen.point(x, measured, `dot run-${run.colour}${other}`, run.shape, named("measured", measured), 4);
          }
          pen.point(here, d[panel.key], "now", 0, "", 4);
        },
      });
    }
  }

  let waiting = false;
  function update() {
    settle();
    const d = reflect();
    if (waiting) return;
    waiting = true;  // many slider events between two frames need one drawing
    requestAnimationFrame(() => {
      waiting = false;
      const now = RGG.describe(state.mu, state.sigma, state.p);
      drawDensity(now);
      drawPanels(now);
    });
    return d;
  }

  function listen(id, read) {
    for (const field of [$(id), $(`${id}-number`)])
      field.addEventListener("input", () => {
        const value = Number(field.value);
        if (field.value === "" || !Number.isFinite(value)) return;
        read(value, field.type === "range");
        update();
      });
    $(`${id}-number`).addEventListener("change", (event) => { event.target.blur(); update(); });
  }
  listen("mu", (v) => { state.mu = v; state.held = "mu"; });
  listen("p", (v, slider) => { state.p = clamp(slider ? Math.pow(2, v) : v, 0.25, 4); });
  listen("active", (v, slider) => { state.active = clamp(slider ? expit(v) : v / 100, ...ACTIVE); state.held = "active"; });
  for (const radio of holder.querySelectorAll("input[name=scale]"))
    radio.addEventListener("change", () => {
      state.scale = radio.value === "number" ? Number($("sigma-number").value) || 1 : radio.value;
      update();
    });
  $("sigma-number").addEventListener("input", () => {
    const value = Number($("sigma-number").value);
    if (value >= 0.01) { state.scale = value; update(); }
  });
  for (const radio of holder.querySelectorAll("input[name=axis]"))
    radio.addEventListener("change", () => { state.axis = radio.value; update(); });

  function goTo(run) {
    const scale = run.rule === "gn" || run.rule === "rgn" ? run.rule : run.sigma;
    Object.assign(state, { p: run.p, mu: run.mu, held: "mu", scale });
    holder.querySelector(`input[name=scale][value=${typeof scale === "number" ? "number" : scale}]`).checked = true;
    if (typeof scale === "number") $("sigma-number").value = scale;
    update();
  }
  for (const chip of holder.querySelectorAll(".chip"))
    chip.addEventListener("click", () => goTo(runs[Number(chip.dataset.run)]));
  new ResizeObserver(() => update()).observe($("chart-density"));
  if (runs.length) goTo(runs[0]); else update();
})();
