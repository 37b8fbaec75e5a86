/* The report of a sweep: filters and charts on the data in the page. Plans in `rows` are whole; the rest is counted. */
"use strict";
(() => {
  const D = JSON.parse(document.getElementById("data").textContent);
  const { draw, format, html, COLOURS } = Charts;
  const $ = id => document.getElementById(id);
  const label = name => (D.labels[name] || [name, ""])[0], unit = name => (D.labels[name] || [name, ""])[1];
  /* the rows of D are in the order of their rank */
  const axes = D.axes, axis = Object.fromEntries(axes.map(one => [one.name, one]));
  const value = (name, k) => axis[name] ? axis[name].values[D.rows[name][k]] : D.rows[name][k];
  const words = (name, k) => format(value(name, k), unit(name));
  const names = one => one.values.map(each => format(each, unit(one.name)));
  const count = D.rows.plan.length, chosen = {};
  let sorted = null, upwards = true, most = 20, rows = [], opened = null;

  const told = k => `plan ${D.rows.plan[k]}\n` + axes.map(one => `${label(one.name)} ${words(one.name, k)}`).join(", ") +
    `\n${label(D.by)} ${words(D.by, k)}, step ${words("step_time_s", k)}`;
  const extent = values => [Math.min(...values), Math.max(...values)];
  const select = (options, current, changed) => {
    const box = html("select");
    for (const [key, text] of options) box.append(html("option", { value: key, ...(key === current ? { selected: "" } : {}) }, text));
    box.addEventListener("change", () => changed(box.value));
    return box;
  };

  /* rows that match the filters, the best first; without one axis, to see which of its values others leave */
  function filtered(without) {
    const kept = [], asked = Object.entries(chosen).filter(([name, set]) => set.size && name !== without);
    for (let k = 0; k < count; k++) if (asked.every(([name, set]) => set.has(D.rows[name][k]))) kept.push(k);
    return kept;
  }

  const chips = [];
  function filters() {
    for (const one of axes) {
      const there = new Set(D.rows[one.name]);
      if (there.size < 2) continue;
      chosen[one.name] = new Set();
      const row = html("div", { class: "filter" }, html("span", {}, label(one.name)));
      names(one).forEach((text, code) => {
        if (!there.has(code)) return;
        const chip = html("button", { type: "button", "aria-pressed": "false" }, text);
        chip.addEventListener("click", () => {
          const set = chosen[one.name];
          if (set.has(code)) set.delete(code); else set.add(code);
          update();
        });
        chips.push([chip, one.name, code]);
        row.append(chip);
      });
      $("filters").append(row);
    }
    $("clear").addEventListener("click", () => {
      for (const set of Object.values(chosen)) set.clear();
      update();
    });
    $("unsort").addEventListener("click", () => { sorted = null; ranking(); });
  }
  function mark() {
    const left = Object.fromEntries(Object.keys(chosen).map(name => [name, new Set(filtered(name).map(k => D.rows[name][k]))]));
    for (const [chip, name, code] of chips) {
      const on = chosen[name].has(code);
      chip.classList.toggle("on", on);
      chip.setAttribute("aria-pressed", on);
      chip.disabled = !on && !left[name].has(code);
    }
    $("clear").disabled = !Object.values(chosen).some(set => set.size);
  }

  function ranking() {
    const columns = ["plan", ...axes.map(one => one.name), ...D.shown];
    const head = html("tr", {}, html("th", { class: "n" }, "#"));
    for (const name of columns) {
      const arrow = sorted === name ? (upwards ? " \u25b2" : " \u25bc") : "";
      const cell = html("th", { class: "n", "data-sort": name, tabindex: "0" }, label(name).replaceAll("_", "_\u200b") + arrow);
      const sort = () => { [upwards, sorted] = [sorted === name ? !upwards : !D.high.includes(name), name]; ranking(); };
      cell.addEventListener("click", sort);
      cell.addEventListener("keydown", event => { if (event.key === "Enter") sort(); });
      head.append(cell);
    }
    const few = rows.slice(0, most); // the best, in whatever order
    if (sorted) few.sort((a, b) => {
      const [one, other] = [D.rows[sorted][a], D.rows[sorted][b]];
      return (one === null) - (other === null) || (upwards ? one - other : other - one) || a - b;
    });
    const body = few.flatMap(k => {
      const toggle = html("button", { type: "button", "aria-expanded": String(opened === k) }, String(D.rows.plan[k]));
      const line = html("tr", { class: opened === k ? "plan open" : "plan", "data-plan": D.rows.plan[k] }, html("td", { class: "n" }, String(k + 1)),
        ...columns.map(name => html("td", { class: "n", "data-label": label(name) }, name === "plan" ? toggle : words(name, k))));
      line.addEventListener("click", () => { opened = opened === k ? null : k; ranking(); });
      return opened === k ? [line, html("tr", {}, html("td", { class: "detail", colspan: columns.length + 1 }, detail(k)))] : [line];
    });
    $("ranking").replaceChildren(html("table", {}, head, ...body));
    fit();
    const shown = `the best ${few.length.toLocaleString("en-US")} of ${rows.length.toLocaleString("en-US")} plans that match, of ${count.toLocaleString("en-US")}`;
    $("shown").textContent = shown + (sorted ? `, by ${label(sorted)}` : "");
    $("more").hidden = rows.length <= most;
    $("unsort").hidden = !sorted;
  }

  /* a table that is wider than its place is shown as a card for each plan: no column is cut */
  function fit() {
    const box = $("ranking");
    box.classList.remove("cards");
    box.classList.toggle("cards", box.scrollWidth > box.clientWidth);
  }

  /* a plan by part: its step, its memory, commands that go on from it */
  function detail(k) {
    const table = (title, parts, whole, own) => {
      const box = html("div", { class: "parts" });
      parts.filter(name => D.rows[name][k] > 0).forEach(name => {
        const bar = html("i");
        Object.assign(bar.style, { background: COLOURS[parts.indexOf(name) % COLOURS.length], width: `${100 * D.rows[name][k] / whole}%` });
        box.append(html("span", {}, label(name)), bar, html("span", { class: "n" }, format(D.rows[name][k], own)), html("span", { class: "n" }, format(D.rows[name][k] / whole, "%")));
      });
      return html("div", {}, html("h4", {}, title), box);
    };
    const box = html("div", { class: "beside" }, table(`step ${words("step_time_s", k)}`, D.parts, D.rows.step_time_s[k], "s"));
    const peak = (D.rows.peak_memory_bytes || [])[k];
    if (peak) box.append(table(`memory ${format(peak, "B")} of ${words("device_memory_bytes", k)} on the fullest GPU`, D.memory, peak, "B"));
    const measured = (D.rows.measured_s || [])[k];
    if (measured) box.append(html("div", { class: "full" }, `measured ${format(measured, "s")}, ${format(measured / D.rows.step_time_s[k], "")} x the simulated step`));
    const after = html("div", { class: "full" }, html("h4", {}, "why it is so, what to change, its timeline, its launch"));
    for (const text of D.commands) after.append(copied(html("pre", { class: "command" }, text.replaceAll("PLAN", D.rows.plan[k]))));
    box.append(after);
    box.addEventListener("click", event => event.stopPropagation());
    return box;
  }
  function copied(pre) {
    const text = pre.textContent, button = html("button", { type: "button" }, "copy");
    button.addEventListener("click", async () => {
      try { await navigator.clipboard.writeText(text); button.textContent = "copied"; } catch { getSelection().selectAllChildren(pre.firstChild); }
    });
    if (!pre.querySelector("button")) pre.append(button);
    return pre;
  }

  let colourBy = axes.length ? axes[0].name : null, tradeOff = 0;
  function tradeOffs() {
    const found = D.density[tradeOff];
    if (!found) return;
    const least = Math.log(1 + Math.max(...found.cells.map(cell => cell[2])));
    const at = k => ({ x: value(found.x, k), y: value(found.y, k) });
    const points = rows.filter(k => at(k).x > 0 && at(k).y > 0).map(k => ({
      ...at(k), text: told(k), colour: colourBy ? COLOURS[D.rows[colourBy][k] % COLOURS.length] : COLOURS[0],
    })).reverse();
    if (found.y === "step_time_s") rows.forEach(k => {
      const measured = (D.rows.measured_s || [])[k];
      if (measured && value(found.x, k) > 0) points.push({ x: value(found.x, k), y: measured, colour: "var(--ink)", text: `measured ${format(measured, "s")}\n${told(k)}` });
    });
    const memory = found.x === "peak_memory_bytes" ? [...new Set(D.rows.device_memory_bytes || [])].filter(Boolean) : [];
    const domain = [found.edges_x[0], Math.max(found.edges_x[found.edges_x.length - 1], ...memory.map(each => each * 1.05))];
    draw($("trade-offs"), {
      kind: "scatter", height: 420, points,
      x: { domain, log: true, unit: unit(found.x), label: label(found.x) },
      y: { domain: extent([found.edges_y[0], found.edges_y[found.edges_y.length - 1], ...points.map(one => one.y)]), log: true, unit: unit(found.y), label: label(found.y) },
      cells: found.cells.map(([i, j, n]) => [found.edges_x[i], found.edges_x[i + 1], found.edges_y[j], found.edges_y[j + 1], Math.log(1 + n) / least, `${n.toLocaleString("en-US")} plans that run`]),
      front: found.front.map(([plan, x, y]) => [x, y, `on the front: plan ${plan}\n${label(found.x)} ${format(x, unit(found.x))}\n${label(found.y)} ${format(y, unit(found.y))}`]),
      marks: memory.map(each => ({ x: each, text: `device: ${format(each, "B")}` })),
    });
    const legend = html("div", { class: "legend" });
    if (colourBy) names(axis[colourBy]).forEach((text, code) => {
      const mark = html("i");
      mark.style.background = COLOURS[code % COLOURS.length];
      legend.append(html("span", {}, mark, `${label(colourBy)} ${text}`));
    });
    $("trade-legend").replaceChildren(legend);
  }

  function parallel() {
    const measures = [...new Set(["step_time_s", "peak_memory_bytes", D.by])].filter(name => D.rows[name].some(each => each !== null));
    const few = rows.slice(0, 300);
    if (!few.length || !axes.length) return $("parallel").replaceChildren("no plan matches");
    const colour = place => `hsl(${212 - 190 * place / Math.max(few.length - 1, 1)} 60% 45%)`;
    const drawn = axes.filter(one => one.name in chosen), there = Object.fromEntries(drawn.map(one => [one.name, [...new Set(D.rows[one.name])].sort((a, b) => a - b)]));
    draw($("parallel"), {
      kind: "parallel",
      axes: [...drawn.map(one => ({ label: label(one.name), names: there[one.name].map(code => names(one)[code]) })),
        ...measures.map(name => ({ label: label(name), unit: unit(name), domain: extent(few.map(k => D.rows[name][k]).filter(each => each !== null)) }))],
      lines: few.map((k, place) => ({ colour: colour(place), text: told(k), values: [...drawn.map(one => there[one.name].indexOf(D.rows[one.name][k])), ...measures.map(name => D.rows[name][k])] })),
    });
  }

  function breakdown() {
    const few = rows.slice(0, 15), parts = D.parts.filter(part => few.some(k => D.rows[part][k] > 0));
    if (!few.length) return $("breakdown").replaceChildren("no plan matches");
    draw($("breakdown"), {
      kind: "stacked", x: { domain: [0, 1], unit: "%", label: "part of the step" },
      y: { names: few.map(k => `${D.rows.plan[k]}: ${words("step_time_s", k)}`) },
      series: parts.map(part => ({ name: label(part), colour: COLOURS[D.parts.indexOf(part) % COLOURS.length], values: few.map(k => D.rows[part][k] / D.rows.step_time_s[k]) })),
    });
  }

  let across = axes[0] && axes[0].name, down = axes[1] && axes[1].name;
  function heat() {
    if (axes.length < 2 || across === down) return;
    const straight = D.heat[`${down}|${across}`], turned = D.heat[`${across}|${down}`];
    const [wide, high] = [axis[across].values.length, axis[down].values.length];
    const cell = (j, i) => (straight ? straight[j * wide + i] : turned[i * high + j]);
    draw($("heat"), {
      kind: "heat", unit: unit(D.by), best: D.descending ? "high" : "low", title: "heat map",
      x: { names: names(axis[across]), label: label(across) }, y: { names: names(axis[down]), label: label(down) },
      values: [...Array(high).keys()].map(j => [...Array(wide).keys()].map(i => cell(j, i))),
      text: (j, i, best) => `${label(down)} ${names(axis[down])[j]}, ${label(across)} ${names(axis[across])[i]}\n${best === null ? "no plan runs" : `best ${label(D.by)} ${format(best, unit(D.by))}`}`,
    });
  }

  function sensitivity() {
    const plots = D.sensitivity.map(() => html("div", { class: "plot" })); // all first: they share the width
    D.sensitivity.forEach((one, k) => $("sensitivity").append(html("figure", {}, html("figcaption", {}, `best ${label(D.by)} by ${label(one.axis)}`), plots[k])));
    D.sensitivity.forEach((one, at) => {
      const known = one.best.filter(each => each !== null);
      const best = D.descending ? Math.max(...known) : Math.min(...known);
      draw(plots[at], {
        kind: "bars", height: 190, x: { names: names({ name: one.axis, values: one.values }) },
        y: { domain: [0, Math.max(...known) * 1.05], unit: unit(D.by), count: 4 }, values: one.best,
        colours: one.best.map(each => (each === best ? COLOURS[2] : COLOURS[0])),
        tips: one.best.map((each, k) => `${label(one.axis)} ${format(one.values[k], unit(one.axis))}: ${each === null ? "no plan runs" : format(each, unit(D.by)) + `, plan ${one.plan[k]}`}\n${one.ran[k].toLocaleString("en-US")} of ${one.all[k].toLocaleString("en-US")} plans run`),
      });
    });
  }

  let reasonAxis = across;
  function reasons() {
    if (!reasonAxis) return;
    const counts = D.reasons_by_axis[reasonAxis], order = D.reasons.map(one => D.reason_names.indexOf(one.reason)).slice(0, 9);
    const total = counts.map(row => row.reduce((sum, n) => sum + n, 0));
    const rest = counts.map((row, k) => total[k] - order.reduce((sum, at) => sum + row[at], 0));
    const series = order.map(at => ({ name: D.reason_names[at], values: counts.map((row, k) => row[at] / total[k]) }));
    if (rest.some(n => n > 0)) series.push({ name: "other", values: rest.map((n, k) => n / total[k]) });
    draw($("reasons"), { kind: "stacked", x: { domain: [0, 1], unit: "%", label: "of the plans" }, y: { names: names(axis[reasonAxis]) }, series });
  }

  function update() {
    rows = filtered();
    mark();
    ranking(); tradeOffs(); parallel(); breakdown();
  }
  const options = axes.map(one => [one.name, label(one.name)]);
  if (D.density.length) $("trade-controls").append("x: ", select(D.density.map((one, k) => [String(k), label(one.x)]), "0", key => { tradeOff = Number(key); tradeOffs(); }),
    " colour: ", select(options, colourBy, key => { colourBy = key; tradeOffs(); }));
  if (axes.length > 1) $("heat-controls").append("across: ", select(options, across, key => { across = key; heat(); }), " down: ", select(options, down, key => { down = key; heat(); }));
  if (axes.length) $("reason-controls").append("by: ", select(options, reasonAxis, key => { reasonAxis = key; reasons(); }));
  addEventListener("resize", fit);
  $("more").addEventListener("click", () => { most += 80; ranking(); });
  document.querySelectorAll("pre.command").forEach(copied);
  addEventListener("beforeprint", () => document.querySelectorAll(".winner details:first-of-type").forEach(box => { box.open = true; }));
  filters(); update(); heat(); sensitivity(); reasons();
  document.body.dataset.ready = "yes";
})();
