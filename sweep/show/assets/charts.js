/* Charts of our pages, as SVG: lines, bars, points, heat maps, parallel coordinates. No network, no library. */
"use strict";
const Charts = (() => {
  const COLOURS = [...Array(10).keys()].map(k => `var(--c${k})`); // of page.css, which has two themes
  const NS = "http://www.w3.org/2000/svg";
  const drawn = new Map();

  function svg(name, attributes, text) {
    const node = document.createElementNS(NS, name);
    for (const [key, value] of Object.entries(attributes || {}))
      if (key === "fill" || key === "stroke") node.style[key] = value; else node.setAttribute(key, value);
    if (text !== undefined) node.textContent = text;
    return node;
  }
  function html(name, attributes, ...children) {
    const node = document.createElement(name);
    for (const [key, value] of Object.entries(attributes || {})) node.setAttribute(key, value);
    node.append(...children);
    return node;
  }

  /* numbers with their unit */
  const PREFIX = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""], [1e-3, "m"], [1e-6, "\u00b5"], [1e-9, "n"]];
  const trim = (value, digits) => String(Number(value.toPrecision(digits)));
  function format(value, unit, digits = 4) {
    if (value === null || value === undefined) return "\u2013";
    if (typeof value === "boolean") return value ? "yes" : "no";
    if (typeof value !== "number") return String(value);
    if (unit === "%") return trim(value * 100, Math.min(digits, 3)) + " %";
    if (!unit) return Math.abs(value) >= 1e4 ? Math.round(value).toLocaleString("en-US") : trim(value, digits);
    if (value === 0) return "0 " + unit;
    const size = Math.abs(value);
    const [factor, prefix] = PREFIX.find(([from, name]) => size >= from && !(unit === "s" && from > 1)) || PREFIX[PREFIX.length - 1];
    return trim(value / factor, digits) + " " + prefix + unit;
  }

  /* scales: {domain, log} or {names} -> a function with ticks */
  function scale(axis, from, to) {
    if (axis.names) {
      const step = (to - from) / Math.max(axis.names.length, 1);
      const place = k => from + step * (k + 0.5);
      return Object.assign(place, { step: Math.abs(step), ticks: axis.names.map((name, k) => [k, String(name)]) });
    }
    let [low, high] = axis.domain;
    if (axis.log) {
      [low, high] = [Math.log10(low), Math.log10(high)];
      if (Math.abs(high - low) < 1e-9) [low, high] = [low - 0.1, high + 0.1];
      const place = value => from + (Math.log10(value) - low) / (high - low) * (to - from);
      const label = value => format(value, axis.unit, 3);
      const wide = high - low > 1.2;
      const values = axis.ticks ? axis.ticks.slice() : wide ? [] : nice(10 ** low, 10 ** high, 5);
      for (let k = Math.floor(low); wide && !axis.ticks && k <= high; k++)
        for (const m of high - low > 3 ? [1] : [1, 2, 5]) if (m * 10 ** k >= 10 ** low * 0.999 && m * 10 ** k <= 10 ** high * 1.001) values.push(m * 10 ** k);
      return Object.assign(place, { ticks: values.map(value => [value, label(value)]) });
    }
    if (high === low) [low, high] = [low - (Math.abs(low) || 1) * 0.1, high + (Math.abs(high) || 1) * 0.1];
    const place = value => from + (value - low) / (high - low) * (to - from);
    return Object.assign(place, { ticks: nice(low, high, axis.count || 5).map(value => [value, format(value, axis.unit, 4)]) });
  }
  function nice(low, high, count) {
    const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].find(m => m * power >= rough) * power, values = [];
    for (let value = Math.ceil(low / step - 1e-9) * step; value <= high + step * 1e-9; value += step) values.push(Math.abs(value) < step * 1e-9 ? 0 : value);
    return values;
  }

  /* one box under the pointer */
  function tip(node, text) {
    const box = document.getElementById("tip") || document.body.appendChild(html("div", { id: "tip", role: "status" }));
    for (const kind of ["pointermove", "pointerdown"]) node.addEventListener(kind, event => {
      box.textContent = typeof text === "function" ? text() : text;
      box.style.opacity = 1;
      const left = Math.min(event.clientX + 14, innerWidth - box.offsetWidth - 8);
      box.style.left = Math.max(left, 4) + "px";
      box.style.top = (event.clientY + 14 + box.offsetHeight > innerHeight ? event.clientY - box.offsetHeight - 10 : event.clientY + 14) + "px";
    });
    node.addEventListener("pointerleave", () => { box.style.opacity = 0; });
  }

  /* axes, grid and labels; returns the picture and both scales */
  function frame(host, spec) {
    const width = Math.max(host.clientWidth, 200), height = spec.height || 300;
    const longest = axis => axis.names ? Math.max(...axis.names.map(name => String(name).length), 1) : 8;
    let left = Math.min(spec.y.names ? longest(spec.y) * 6.4 + 12 : 62, width * 0.4);
    const tilted = spec.x.names && longest(spec.x) * 6.6 > (width - left) / spec.x.names.length;
    if (tilted) left = Math.min(Math.max(left, Math.min(longest(spec.x), 24) * 5.2 - (width - left) / spec.x.names.length / 2), width * 0.4);
    const bottom = (tilted ? Math.min(longest(spec.x) * 5 + 12, 90) : 20) + (spec.x.label ? 18 : 0);
    const box = { left, right: width - 12, top: spec.y.label ? 22 : 8, bottom: height - bottom };
    const picture = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": spec.title || "" });
    const x = scale(spec.x, box.left, box.right), y = scale(spec.y, spec.y.names ? box.top : box.bottom, spec.y.names ? box.bottom : box.top);
    const every = Math.ceil(x.ticks.length * (tilted ? 14 : 58) / Math.max(box.right - box.left, 1));
    let taken = -Infinity;  // labels end here
    x.ticks.forEach(([value, label], k) => {
      if (k % Math.max(every, 1)) return;
      if (!spec.x.names) picture.append(svg("line", { x1: x(value), x2: x(value), y1: box.top, y2: box.bottom, stroke: "var(--grid)" }));
      const at = { x: x(value), y: box.bottom + 14, "text-anchor": tilted ? "end" : "middle" };
      if (!tilted) {
        const half = Math.min(label.length, 24) * 3.7;
        at.x = Math.min(at.x, width - half);
        if (at.x - half < taken + 4) return;
        taken = at.x + half;
      }
      if (tilted) at.transform = `rotate(-35 ${x(value)} ${box.bottom + 12})`;
      picture.append(svg("text", at, label.length > 24 ? label.slice(0, 23) + "\u2026" : label));
    });
    for (const [value, label] of y.ticks) {
      if (!spec.y.names) picture.append(svg("line", { x1: box.left, x2: box.right, y1: y(value), y2: y(value), stroke: "var(--grid)" }));
      const room = Math.floor((left - 12) / 6.2);
      picture.append(svg("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, label.length > room ? label.slice(0, room - 1) + "\u2026" : label));
    }
    picture.append(svg("line", { x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom, stroke: "var(--axis)" }));
    if (spec.x.label) picture.append(svg("text", { x: box.right, y: height - 4, "text-anchor": "end", class: "title" }, spec.x.label));
    if (spec.y.label) picture.append(svg("text", { x: 4, y: 12, class: "title" }, spec.y.label));
    host.replaceChildren(picture);
    return { picture, x, y, box };
  }
  function legend(host, entries) {
    const box = html("div", { class: "legend" });
    for (const [name, colour] of entries) {
      const mark = html("i");
      mark.style.background = colour;
      box.append(html("span", {}, mark, String(name)));
    }
    host.prepend(box);
  }

  const KINDS = {
    /* {x: {names}, y, series: [{name, values}]}: lines with gaps */
    lines(host, spec) {
      const { picture, x, y } = frame(host, spec);
      spec.series.forEach((one, k) => {
        const colour = COLOURS[k % COLOURS.length];
        let path = "", pen = "M";
        one.values.forEach((value, at) => {
          if (value === null) { pen = "M"; return; }
          path += `${pen}${x(at).toFixed(1)} ${y(value).toFixed(1)}`;
          pen = "L";
        });
        picture.append(svg("path", { d: path, fill: "none", stroke: colour, "stroke-width": 1.6, class: "line" }));
        one.values.forEach((value, at) => {
          if (value === null) return;
          const dot = svg("circle", { cx: x(at), cy: y(value), r: 3.2, fill: colour });
          tip(dot, `${one.name}\n${spec.x.names[at]}: ${format(value, spec.y.unit)}`);
          picture.append(dot);
        });
      });
      if (spec.series.length > 1) legend(host, spec.series.map((one, k) => [one.name, COLOURS[k % COLOURS.length]]));
    },
    /* {x: {names}, y, values, colours, tips}: bars from 0, or from the bottom of a logarithmic axis */
    bars(host, spec) {
      const { picture, x, y, box } = frame(host, spec);
      const zero = spec.y.log ? box.bottom : y(0);
      spec.values.forEach((value, k) => {
        if (value === null || (spec.y.log && value <= 0)) return;
        const at = y(value), width = Math.max(Math.min(x.step * 0.8, 60), 1.5);
        const bar = svg("rect", { x: x(k) - width / 2, width, y: Math.min(at, zero), height: Math.max(Math.abs(zero - at), 0.5), fill: (spec.colours || [])[k] || COLOURS[0], class: "bar" });
        tip(bar, (spec.tips || [])[k] || `${spec.x.names[k]}: ${format(value, spec.y.unit)}`);
        picture.append(bar);
      });
    },
    /* {names, x, series: [{name, values, colour}]}: one row a name, parts side by side */
    stacked(host, spec) {
      const colour = k => spec.series[k].colour || COLOURS[k % COLOURS.length];
      const { picture, x, y } = frame(host, { ...spec, height: 50 + spec.y.names.length * 20 });
      const end = spec.y.names.map(() => 0);
      spec.series.forEach((one, k) => one.values.forEach((value, row) => {
        if (!value) return;
        const bar = svg("rect", { x: x(end[row]), width: Math.max(x(end[row] + value) - x(end[row]), 0.3), y: y(row) - 7, height: 14, fill: colour(k), class: "bar" });
        tip(bar, `${spec.y.names[row]}\n${one.name}: ${format(value, spec.x.unit)}`);
        picture.append(bar);
        end[row] += value;
      }));
      legend(host, spec.series.map((one, k) => [one.name, colour(k)]));
    },
    /* {x, y, cells: [[x0, x1, y0, y1, weight 0..1, text]], front: [[x, y, text]], points: [{x, y, colour, text}]} */
    scatter(host, spec) {
      const { picture, x, y, box } = frame(host, spec);
      for (const [x0, x1, y0, y1, weight, text] of spec.cells || []) {
        const cell = svg("rect", { x: x(x0), width: Math.max(x(x1) - x(x0), 0.5), y: y(y1), height: Math.max(y(y0) - y(y1), 0.5), fill: "var(--cloud)", "fill-opacity": 0.12 + 0.6 * weight, class: "cell" });
        tip(cell, text);
        picture.append(cell);
      }
      for (const one of spec.marks || []) {
        picture.append(svg("line", { x1: x(one.x), x2: x(one.x), y1: box.top, y2: box.bottom, stroke: "var(--c6)", "stroke-dasharray": "4 3" }));
        picture.append(svg("text", { x: x(one.x) - 4, y: box.top + 10, "text-anchor": "end", style: "paint-order:stroke;stroke:var(--back);stroke-width:3px" }, one.text));
      }
      const front = spec.front || [];
      if (front.length) {
        const steps = front.map(([a, b], k) => (k ? `H${x(a).toFixed(1)}V${y(b).toFixed(1)}` : `M${x(a).toFixed(1)} ${y(b).toFixed(1)}`)).join("");
        picture.append(svg("path", { d: steps, fill: "none", stroke: "var(--c6)", "stroke-width": 1.5, class: "front" }));
      }
      for (const one of spec.points || []) {
        const dot = svg("circle", { cx: x(one.x), cy: y(one.y), r: 3, fill: one.colour, "fill-opacity": 0.7, class: "point" });
        tip(dot, one.text);
        picture.append(dot);
      }
      for (const [a, b, text] of front) {
        const dot = svg("circle", { cx: x(a), cy: y(b), r: 4, fill: "var(--back)", stroke: "var(--c6)", "stroke-width": 1.6, class: "on-front" });
        tip(dot, text);
        picture.append(dot);
      }
    },
    /* {x: {names}, y: {names}, values[y][x], best: "low"|"high", text(y, x, value)} */
    heat(host, spec) {
      const { picture, x, y } = frame(host, { ...spec, height: 70 + spec.y.names.length * 26 });
      const known = spec.values.flat().filter(value => value !== null);
      const low = Math.min(...known), high = Math.max(...known);
      spec.values.forEach((row, j) => row.forEach((value, i) => {
        const part = value === null || high === low ? 0.5 : (value - low) / (high - low), good = spec.best === "high" ? part : 1 - part;
        const cell = svg("rect", { x: x(i) - x.step / 2 + 1, width: Math.max(x.step - 2, 1), y: y(j) - y.step / 2 + 1, height: Math.max(y.step - 2, 1),
          fill: value === null ? "var(--none)" : "var(--c0)", "fill-opacity": value === null ? 1 : 0.1 + 0.9 * good, class: "cell" });
        tip(cell, spec.text(j, i, value));
        picture.append(cell);
        if (x.step > 44) picture.append(svg("text", { x: x(i), y: y(j) + 4, "text-anchor": "middle", "pointer-events": "none", fill: value !== null && good > 0.6 ? "var(--on)" : "var(--ink)" }, value === null ? "\u2013" : format(value, spec.unit, 3)));
      }));
    },
    /* {axes: [{label, names} or {label, domain, log, unit}], lines: [{values, colour, text}]} */
    parallel(host, spec) {
      const wide = host.clientWidth >= spec.axes.length * 74; // else the axes lie below each other
      const width = Math.max(host.clientWidth, 200), row = 52, height = wide ? spec.height || 320 : spec.axes.length * row;
      const picture = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}` });
      const at = k => wide ? 40 + k * (width - 84) / Math.max(spec.axes.length - 1, 1) : 24 + k * row;
      const [from, to] = wide ? [height - 14, 40] : [16, width - 16];
      const scales = spec.axes.map(axis => scale(axis, from, to));
      for (const one of spec.lines.slice().reverse()) {
        const point = (value, k) => wide ? [at(k), scales[k](value)] : [scales[k](value), at(k)];
        const path = one.values.map((value, k) => value === null ? null : point(value, k).map(each => each.toFixed(1)).join(" ")).filter(Boolean).join("L");
        const line = svg("path", { d: "M" + path, fill: "none", stroke: one.colour, "stroke-opacity": 0.45, "stroke-width": 1.3, class: "plan" });
        tip(line, one.text);
        picture.append(line);
      }
      const halo = "paint-order:stroke;stroke:var(--back);stroke-width:3px";
      spec.axes.forEach((axis, k) => {
        const [x1, y1, x2, y2] = wide ? [at(k), to, at(k), from] : [from, at(k), to, at(k)];
        picture.append(svg("line", { x1, x2, y1, y2, stroke: "var(--axis)" }));
        picture.append(svg("text", wide ? { x: at(k), y: k % 2 ? 26 : 13, "text-anchor": "middle", class: "title" } : { x: 4, y: at(k) - 6, class: "title", style: halo }, axis.label));
        let taken = -Infinity;
        for (const [value, label] of scales[k].ticks) {
          if (wide) { picture.append(svg("text", { x: at(k) + 4, y: scales[k](value) + 4, style: halo }, label)); continue; }
          const half = label.length * 3.3, x = Math.min(Math.max(scales[k](value), half + 2), width - half - 2);
          if (x - half < taken + 4) continue;
          taken = x + half;
          picture.append(svg("text", { x, y: at(k) + 14, "text-anchor": "middle", style: halo }, label));
        }
      });
      host.replaceChildren(picture);
    },
  };

  function draw(host, spec) {
    drawn.set(host, spec);
    KINDS[spec.kind](host, spec);
    host.dataset.drawn = spec.kind;
  }
  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth === width) return;
    width = innerWidth;
    for (const [host, spec] of drawn) draw(host, spec);
  });
  return { draw, format, html, COLOURS };
})();
