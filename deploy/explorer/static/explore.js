// Keys, values under the pointer, and word of new data. Every page also works without it.
"use strict";

const body = document.body;
const rows = [...document.querySelectorAll("[data-row]")];
let at = -1;

function select(index, move) {
  if (index < 0 || index >= rows.length) return;
  if (at >= 0) rows[at].classList.remove("at");
  at = index;
  const row = rows[at];
  row.classList.add("at");
  if (!move) return;
  row.scrollIntoView({ block: "nearest" });
  if (row.id) history.replaceState(null, "", "#" + row.id);
}

function fromAddress() {
  const index = location.hash ? rows.findIndex((row) => "#" + row.id === location.hash) : -1;
  if (index >= 0) select(index, false);
}

function follow(href) {
  if (href) location.href = href;
}

function linked(rel) {
  const link = document.querySelector(`link[rel="${rel}"]`);
  return link && link.href;
}

const keys = {
  j: () => select(at + 1, true),
  k: () => select(at < 0 ? 0 : at - 1, true),
  Enter: () => { const link = at >= 0 && rows[at].matches("tr") && rows[at].querySelector("td a"); if (link) link.click(); },
  o: () => {
    const fold = at >= 0 && (rows[at].querySelector("details.prompt") ?? rows[at].querySelector("details"));
    if (fold) fold.open = !fold.open;
  },
  n: () => follow(linked("next")),
  p: () => follow(linked("prev")),
  u: () => follow(linked("up")),
  w: () => { const worst = document.getElementById("worst"); if (worst) worst.click(); },
  g: () => follow(body.dataset.groups),
  e: () => follow(body.dataset.evaluations),
  h: () => follow(body.dataset.home),
  "?": () => document.getElementById("keys").showModal(),
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT|TEXTAREA|BUTTON)$/.test(event.target.tagName)) return;
  if (event.key === "Enter" && event.target !== body) return;
  if (document.getElementById("keys").open || !Object.hasOwn(keys, event.key)) return;
  event.preventDefault();
  keys[event.key]();
});
document.getElementById("help").addEventListener("click", () => document.getElementById("keys").showModal());
document.getElementById("keys").addEventListener("click", (event) => event.currentTarget.close());
window.addEventListener("hashchange", fromAddress);
fromAddress();

const [WIDTH, HEIGHT, LEFT, RIGHT] = [420, 184, 44, 412];

for (const figure of document.querySelectorAll("figure.chart")) {
  const svg = figure.querySelector("svg[data-series]");
  const readout = figure.querySelector(".readout");
  const series = JSON.parse(svg.dataset.series);
  const steps = series.flatMap((line) => line.steps);
  const [first, last] = [Math.min(...steps), Math.max(...steps)];

  function shown(value) {
    return "percent" in svg.dataset ? `${Number((100 * value).toPrecision(3))}%` : Number(value.toPrecision(4));
  }

  function at(event) {
    const box = svg.getBoundingClientRect();
    return [((event.clientX - box.left) / box.width) * WIDTH, ((event.clientY - box.top) / box.height) * HEIGHT];
  }

  function nearest(event, among) {
    const wanted = first + ((at(event)[0] - LEFT) / (RIGHT - LEFT)) * (last - first);
    return among.reduce((best, step) => (Math.abs(step - wanted) < Math.abs(best - wanted) ? step : best), among[0]);
  }

  function nearestLine(event) {
    const [x, y] = at(event);
    const points = [...svg.querySelectorAll("polyline")].flatMap((drawn) => [...drawn.points].map((point) =>
      ({ line: series[drawn.dataset.line], far: Math.hypot(point.x - x, point.y - y) })));
    return points.reduce((best, point) => (point.far < best.far ? point : best), { line: series[0], far: Infinity }).line;
  }

  svg.addEventListener("pointermove", (event) => {
    const step = nearest(event, steps);
    const x = LEFT + ((RIGHT - LEFT) * (step - first)) / Math.max(last - first, 1);
    const cross = svg.querySelector(".cross");
    cross.setAttribute("x1", x);
    cross.setAttribute("x2", x);
    const texts = series.map((line) => [line.name, line.values[line.steps.indexOf(step)]])
      .filter(([, value]) => value !== undefined && value !== null)
      .map(([name, value]) => `${name} ${shown(value)}`);
    readout.textContent = `step ${step}: ${texts.join(", ")}`;
  });
  svg.addEventListener("click", (event) => {
    const line = nearestLine(event);
    const step = nearest(event, line.steps);
    follow(`/${JSON.parse(figure.dataset.runs)[line.run]}/groups?first=${step}&last=${step}`);
  });
}

const POLL_MS = 5000;
let previous = null;

async function look() {
  if (!document.hidden) {
    try {
      const reply = await fetch("/api/state");
      const state = reply.ok ? JSON.stringify(await reply.json()) : previous;
      if (previous !== null && state !== previous) document.getElementById("fresh").hidden = false;
      previous = previous ?? state;
    } catch { /* the explorer was stopped; the page stays readable */ }
  }
  setTimeout(look, POLL_MS);
}
look();
