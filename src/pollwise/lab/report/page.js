// Shows the figures under the pointer. Without this script the page lacks nothing else.
"use strict";
const facts = JSON.parse(document.getElementById("pollwise-report").textContent);
const tip = document.body.appendChild(document.createElement("div"));
tip.id = "tip";

function short(s) {
  if (s < 1) return +(s * 1000).toPrecision(3) + "ms";
  if (s < 60) return +s.toPrecision(3) + "s";
  if (s < 3600) return `${Math.floor(s / 60)}m${Math.round(s % 60)}s`;
  return +(s / 3600).toPrecision(3) + "h";
}

function show(event, title, rows) {
  tip.replaceChildren(title);
  if (rows) {
    const table = tip.appendChild(document.createElement("table"));
    for (const [colour, name, value] of rows) {
      const row = table.insertRow();
      const key = document.createElement("span");
      key.className = "key " + colour;
      row.insertCell().append(key, name);
      row.insertCell().append(value);
    }
  }
  tip.style.display = "block";
  const right = scrollX + document.documentElement.clientWidth;
  const left = event.pageX + 16 + tip.offsetWidth > right ? event.pageX - tip.offsetWidth - 16 : event.pageX + 16;
  tip.style.left = Math.max(left, scrollX + 4) + "px";
  tip.style.top = event.pageY - tip.offsetHeight / 2 + "px";
}

function hide() { tip.style.display = "none"; }

// Points: the browser's own slow tooltip gives way to ours.
for (const title of document.querySelectorAll(".chart title")) {
  const point = title.parentNode;
  point.dataset.tip = title.textContent;
  title.remove();
  point.addEventListener("pointermove", (event) => show(event, point.dataset.tip));
  point.addEventListener("pointerleave", hide);
}

// Charts with a line for each policy: the figures of all of them at the pointer's place.
for (const chart of document.querySelectorAll("[data-chart]")) {
  const at = chart.dataset;
  const section = chart.closest("section");
  const guide = document.createElementNS("http://www.w3.org/2000/svg", "path");
  guide.setAttribute("class", "s-axis");
  chart.append(guide);
  chart.addEventListener("pointermove", (event) => {
    const place = new DOMPoint(event.clientX, event.clientY).matrixTransform(chart.getScreenCTM().inverse());
    const share = (place.x - at.left) / (at.right - at.left);
    if (share < 0 || share >= 1) return leave();
    guide.setAttribute("d", `M${place.x} 20V${at.bottom}`);
    const shown = facts.policies
      .map((policy, number) => [policy, `policy-${number}`])
      .filter(([, series]) => section.querySelector(`[data-series="${series}"]`).checked)
      .map(([policy, series]) => [
        chart.querySelector("." + series)?.classList[0].replace("s-", "b-") ?? "", policy.name,
      ]);
    if (at.chart === "time") {
      const bin = Math.floor(share * facts.time.arrivals_a_second.length);
      const rate = (rates) => +(rates[bin] * at.factor).toPrecision(3) + " " + at.per;
      const rows = shown.map(([colour, name]) => [colour, name, rate(facts.time.polls_a_second[name])]);
      rows.unshift(["b-area", "arrivals", rate(facts.time.arrivals_a_second)]);
      show(event, `${+(bin * at.bin).toPrecision(3)} ${at.unit}`, rows);
    } else {
      const wait = 10 ** (+at.low + share * (at.high - at.low));
      const rows = shown.map(([colour, name]) => {
        const waits = facts.waits.seconds[name];
        const within = waits.filter((each) => each <= wait).length / waits.length;
        return [colour, name, (100 * within).toFixed(1) + " %"];
      });
      show(event, `waited at most ${short(wait)}`, rows);
    }
  });
  function leave() { hide(); guide.removeAttribute("d"); }
  chart.addEventListener("pointerleave", leave);
}
