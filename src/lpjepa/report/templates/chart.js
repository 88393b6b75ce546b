// A small SVG line chart: drawn at the width it has on the screen, so letters keep their size on a phone.
const Chart = (() => {
  "use strict";
  const NS = "http://www.w3.org/2000/svg";

  function node(name, attributes, parent, text) {
    const element = document.createElementNS(NS, name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    if (text !== undefined) element.textContent = text;
    if (parent) parent.appendChild(element);
    return element;
  }

  function ticks(low, high, count) {
    const raw = (high - low) / count;
    const power = Math.pow(10, Math.floor(Math.log10(raw)));
    const step = power * [1, 2, 2.5, 5, 10].find((m) => m * power >= raw);
    const result = [];
    for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; i++) result.push(i * step);
    return result;
  }

  function logTicks(low, high) {
    const result = [];
    for (let e = Math.floor(Math.log10(low)); e <= Math.ceil(Math.log10(high)); e++)
      for (const m of [1, 2, 5]) {
        const value = m * Math.pow(10, e);
        if (value >= low * 0.999 && value <= high * 1.001) result.push(value);
      }
    return result.length > 6 ? result.filter((v) => /^1/.test(v.toExponential())) : result;
  }

  const show = (value) => String(+value.toPrecision(6)).replace("-", "\u2212");

  const SHAPES = [
    (r) => `M${-r},0A${r},${r} 0 1,0 ${r},0A${r},${r} 0 1,0 ${-r},0Z`,
    (r) => `M${-r},${-r}H${r}V${r}H${-r}Z`,
    (r) => `M0,${-1.2 * r}L${1.15 * r},${0.9 * r}H${-1.15 * r}Z`,
    (r) => `M0,${-1.35 * r}L${1.35 * r},0L0,${1.35 * r}L${-1.35 * r},0Z`,
    (r) => `M0,${1.2 * r}L${1.15 * r},${-0.9 * r}H${-1.15 * r}Z`,
  ];

  // spec: {title, xlabel, ylabel, x: [low, high], y: [low, high], logX, height, draw(pen)}
  function draw(holder, spec) {
    const width = Math.max(240, holder.clientWidth), height = spec.height || 220;
    const box = { left: 46, right: 12, top: 10, bottom: 38 };
    const svg = node("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": spec.title });
    const [x0, x1] = spec.logX ? spec.x.map(Math.log10) : spec.x, [y0, y1] = spec.y;
    const X = (v) => box.left + ((spec.logX ? Math.log10(v) : v) - x0) / (x1 - x0) * (width - box.left - box.right);
    const Y = (v) => height - box.bottom - (v - y0) / (y1 - y0) * (height - box.top - box.bottom);
    const clip = `clip-${holder.id}`;
    const defs = node("clipPath", { id: clip }, node("defs", {}, svg));
    node("rect", { x: box.left - 1, y: box.top - 8, width: width - box.left - box.right + 9,
      height: height - box.top - box.bottom + 9 }, defs);
    for (const v of ticks(y0, y1, 4)) {
      node("line", { class: "grid", x1: box.left, x2: width - box.right, y1: Y(v), y2: Y(v) }, svg);
      node("text", { class: "tick", x: box.left - 6, y: Y(v) + 4, "text-anchor": "end" }, svg, show(v));
    }
    for (const v of spec.logX ? logTicks(...spec.x) : ticks(x0, x1, width < 420 ? 4 : 7)) {
      node("line", { class: "grid", x1: X(v), x2: X(v), y1: box.top, y2: height - box.bottom }, svg);
      node("text", { class: "tick", x: X(v), y: height - box.bottom + 15, "text-anchor": "middle" }, svg,
        (spec.tickText || show)(v));
    }
    node("line", { class: "axis", x1: box.left, x2: width - box.right, y1: Y(y0), y2: Y(y0) }, svg);
    node("text", { class: "label", x: (box.left + width - box.right) / 2, y: height - 5, "text-anchor": "middle" },
      svg, spec.xlabel);
    const layer = node("g", { "clip-path": `url(#${clip})` }, svg);
    const path = (xs, ys) => xs.map((x, i) => `${i ? "L" : "M"}${X(x).toFixed(2)},${Y(ys[i]).toFixed(2)}`).join("");
    spec.draw({
      line: (xs, ys, name) => node("path", { class: name, d: path(xs, ys), fill: "none" }, layer),
      area: (xs, ys, name) => node("path", {
        class: name, d: `${path(xs, ys)}L${X(xs[xs.length - 1])},${Y(y0)}L${X(xs[0])},${Y(y0)}Z` }, layer),
      vertical: (x, name, top) => node("line", {
        class: name, x1: X(x), x2: X(x), y1: Y(y0), y2: top === undefined ? box.top : Y(top) }, layer),
      point: (x, y, name, shape, text, size) => {
        const mark = node("path", { class: name, d: SHAPES[shape % SHAPES.length](size || 5),
          transform: `translate(${X(x).toFixed(2)},${Y(y).toFixed(2)})` }, layer);
        if (text) node("title", {}, mark, text);
        return mark;
      },
      note: (x, y, text, anchor) => node("text", { class: "note", x: X(x), y: Y(y), "text-anchor": anchor || "start",
        dx: anchor === "end" ? -9 : 9, dy: 4 }, svg, text),
    });
    holder.replaceChildren(svg);
  }

  return { draw, show };
})();
