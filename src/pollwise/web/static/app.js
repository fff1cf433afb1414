// The script of the web interface. Pages work without it; with it they are live.
//
// While a page is visible, one stream of Server-Sent Events brings its new contents. They are put
// into place by changing only what differs, so that focus, scroll positions, selected text, open
// details and half-filled forms stay as they are.
"use strict";

(() => {
  // Morphing: make `old` equal to `fresh`, and keep the elements that are there.

  // What the reader did: fields that were edited, and details that were opened or closed.
  const touched = new WeakSet();
  document.addEventListener("input", (event) => touched.add(event.target));
  document.addEventListener("change", (event) => touched.add(event.target));
  document.addEventListener("submit", (event) => {
    for (const field of event.target.elements) touched.delete(field);
  });

  // Not `node.id`: in a form, that is the field named "id".
  const idOf = (node) => (node.nodeType === Node.ELEMENT_NODE && node.getAttribute("id")) || "";

  const same = (a, b) =>
    a.nodeType === b.nodeType && a.nodeName === b.nodeName && idOf(a) === idOf(b);

  const isSelected = (node) => {
    const selection = document.getSelection();
    return selection && !selection.isCollapsed && selection.containsNode(node, true);
  };

  function morph(old, fresh) {
    if (old.nodeType === Node.TEXT_NODE || old.nodeType === Node.COMMENT_NODE) {
      if (old.data !== fresh.data && !isSelected(old)) {
        old.data = fresh.data;
        flash(old.parentElement);
      }
      return;
    }
    morphAttributes(old, fresh);
    if (old.nodeName === "TEXTAREA") setValue(old, fresh.value);
    else if (!old.matches(".tip, .hit[data-tip]")) morphChildren(old, fresh);
  }

  function morphAttributes(old, fresh) {
    for (const { name, value } of fresh.attributes) {
      if (isLocal(old, name)) continue;
      if (old.getAttribute(name) !== value) {
        old.setAttribute(name, value);
        if (name === "value" && "value" in old && old.nodeName !== "LI") setValue(old, value);
        if (name === "checked") setChecked(old, true);
      }
    }
    for (const { name } of [...old.attributes]) {
      if (fresh.hasAttribute(name) || isLocal(old, name)) continue;
      old.removeAttribute(name);
      if (name === "checked") setChecked(old, false);
    }
  }

  // Attributes that belong to the reader or to this script.
  function isLocal(element, name) {
    if (name === "open") return element.nodeName === "DETAILS";
    if (name === "data-changed") return true;
    if (name === "hidden") return element.hasAttribute("data-with-script");
    if (name === "class") return element.matches(".hit[data-tip]");
    return name === "tabindex" && element.matches(".plot svg");
  }

  function setValue(field, value) {
    if (!touched.has(field) && field !== document.activeElement) field.value = value;
  }

  function setChecked(field, checked) {
    if (!touched.has(field)) field.checked = checked;
  }

  function morphChildren(old, fresh) {
    const ids = new Set([...fresh.children].map(idOf));
    const keyed = new Map();
    for (const child of [...old.children]) {
      const id = idOf(child);
      if (id && ids.has(id)) keyed.set(id, child);
      else if (id) child.remove();
    }
    let at = old.firstChild;
    const all = [...fresh.childNodes];
    for (const [place, wanted] of all.entries()) {
      const known = keyed.get(idOf(wanted));
      // What was there and is not wanted any more goes first: else all that follows would be made
      // again, with the fields in it.
      while (!known && at && !idOf(at) && !same(at, wanted) && !isWanted(at, all, place)) {
        const next = at.nextSibling;
        at.remove();
        at = next;
      }
      if (known && known.nodeName === wanted.nodeName) {
        if (known !== at) at = move(old, known, at);
        else at = at.nextSibling;
        morph(known, wanted);
      } else if (at && !idOf(at) && same(at, wanted)) {
        const next = at.nextSibling;
        morph(at, wanted);
        at = next;
      } else {
        const added = document.importNode(wanted, true);
        old.insertBefore(added, at);
        prepare(added);
      }
    }
    while (at) {
      const next = at.nextSibling;
      at.remove();
      at = next;
    }
  }

  // True if a child without an id can become one of those that follow.
  function isWanted(child, all, place) {
    if (child.nodeType === Node.TEXT_NODE && !child.data.trim()) return false;
    return all.slice(place).some((wanted) => same(child, wanted));
  }

  // Put a child before another; returns the child that follows. Moving an element takes the focus
  // from it, so if it has the focus, its neighbours move to the end instead.
  function move(parent, element, before) {
    if (!element.contains(document.activeElement)) {
      parent.insertBefore(element, before);
      return before;
    }
    while (before && before !== element) {
      const next = before.nextSibling;
      parent.appendChild(before);
      before = next;
    }
    return element.nextSibling;
  }

  // A gentle sign that a figure changed; the style sheet leaves it out for reduced motion.
  function flash(element) {
    const figure = element && element.closest("dd, td.n, .count");
    if (!figure || element.closest("time") || figure.hasAttribute("data-changed")) return;
    figure.setAttribute("data-changed", "");
    setTimeout(() => figure.removeAttribute("data-changed"), 1000);
  }

  // Live pages

  const main = document.getElementById("main");
  const FIRST_PAUSE = 1000;
  const LONGEST_PAUSE = 30000;
  let stream = null;
  let pause = FIRST_PAUSE;
  let waiting = 0;
  let sign = null;

  function show(state, text) {
    if (!sign) {
      const place = document.querySelector(".who");
      if (!place) return;
      sign = document.createElement("p");
      sign.className = "live";
      sign.setAttribute("role", "status");
      place.prepend(sign);
    }
    if (sign.dataset.state === state) return;
    sign.dataset.state = state;
    sign.textContent = text;
  }

  function open() {
    if (stream || document.hidden) return;
    clearTimeout(waiting);
    stream = new EventSource(location.href.split("#")[0]);
    stream.addEventListener("open", () => show("live", "Live"));
    stream.addEventListener("main", (event) => {
      pause = FIRST_PAUSE;
      update(event.data);
    });
    stream.addEventListener("login", () => location.reload());
    // The browser would try again at a fixed pace: this waits longer each time.
    stream.addEventListener("error", () => {
      close();
      show("away", "Not live, connecting again");
      waiting = setTimeout(open, pause * (0.8 + 0.4 * Math.random()));
      pause = Math.min(pause * 2, LONGEST_PAUSE);
    });
  }

  function close() {
    clearTimeout(waiting);
    if (stream) stream.close();
    stream = null;
  }

  function update(html) {
    const parsed = new DOMParser().parseFromString(`<main>${html}</main>`, "text/html");
    const fresh = parsed.querySelector("main");
    if (!fresh) return;
    morphChildren(main, fresh);
    for (const hit of main.querySelectorAll(".hit.on")) showTip(hit);
  }

  // A page for everybody has no stream: it is asked for again now and then.
  async function ask() {
    if (document.hidden) return;
    const answer = await fetch(location.href).catch(() => null);
    const fresh = answer?.ok && new DOMParser().parseFromString(await answer.text(), "text/html");
    if (fresh) morphChildren(main, fresh.getElementById("main"));
  }

  function visible() {
    if (document.hidden) {
      close();
    } else {
      pause = FIRST_PAUSE;
      open();
    }
  }

  // Relative times go on between two updates. The texts are those of `texts.when` on the server.

  const UNITS = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];

  function age(seconds) {
    if (seconds < 10) return `${Math.floor(seconds)} s`;
    const parts = [];
    for (const [size, unit] of UNITS) {
      const count = Math.floor(seconds / size);
      if (count) parts.push(`${count} ${unit}`);
      else if (parts.length) break;
      seconds -= count * size;
      if (parts.length === 2 || count >= 10) break;
    }
    return parts.join(" ");
  }

  // The clock of the server decides: that of this computer may be wrong.
  const ahead = Date.now() - Number(document.body.dataset.now || Date.now() / 1000) * 1000;

  function tick() {
    if (document.hidden) return;
    const now = Date.now() - ahead;
    for (const element of document.querySelectorAll("time[datetime]:not([data-fixed])")) {
      const distance = (now - Date.parse(element.dateTime)) / 1000;
      if (Number.isNaN(distance) || isSelected(element)) continue;
      const text = Math.abs(distance) < 1 ? "now"
        : distance > 0 ? `${age(distance)} ago` : `in ${age(-distance)}`;
      if (element.textContent !== text) element.textContent = text;
    }
  }

  // Charts: values under the pointer, and with the arrow keys

  function showTip(hit) {
    const chart = hit.closest(".chart");
    for (const other of chart.querySelectorAll(".hit.on")) other.classList.remove("on");
    hit.classList.add("on");
    const tip = chart.querySelector(".tip");
    if (tip) tip.textContent = hit.dataset.tip;
  }

  function hideTip(chart) {
    for (const hit of chart.querySelectorAll(".hit.on")) hit.classList.remove("on");
    const tip = chart.querySelector(".tip");
    if (tip) tip.textContent = "";
  }

  document.addEventListener("pointerover", (event) => {
    const hit = event.target.closest?.(".hit[data-tip]");
    if (hit) showTip(hit);
  });
  document.addEventListener("pointerout", (event) => {
    const chart = event.target.closest?.(".chart");
    if (chart && !chart.contains(event.relatedTarget)) hideTip(chart);
  });
  document.addEventListener("focusout", (event) => {
    const chart = event.target.closest?.(".chart");
    if (chart) hideTip(chart);
  });

  function moveTip(svg, key) {
    const hits = [...svg.querySelectorAll(".hit[data-tip]")];
    if (!hits.length) return false;
    const at = hits.findIndex((hit) => hit.classList.contains("on"));
    const steps = { ArrowLeft: at < 0 ? hits.length - 1 : at - 1, ArrowRight: at + 1, Home: 0, End: hits.length - 1 };
    if (!(key in steps)) return false;
    showTip(hits[Math.min(Math.max(steps[key], 0), hits.length - 1)]);
    return true;
  }

  // Tables and forms

  document.addEventListener("change", (event) => {
    const field = event.target;
    if (field.matches("input[data-select-all]")) {
      for (const box of field.form.querySelectorAll("input[type=checkbox][name=id]")) {
        box.checked = field.checked;
        touched.add(box);
      }
    } else if (field.matches("select") && field.form?.matches("form[data-submit-on-change]")) {
      field.form.requestSubmit();
    }
    const form = field.form;
    const chosen = form?.querySelector("[data-chosen]");
    if (chosen) chosen.textContent = form.querySelectorAll("input[name=id]:checked").length;
  });

  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      for (const box of document.querySelectorAll("details.confirm[open]")) {
        box.open = false;
        box.querySelector("summary").focus();
      }
    } else if (event.target.matches?.(".plot svg") && moveTip(event.target, event.key)) {
      event.preventDefault();
    }
  });

  document.addEventListener("click", (event) => {
    for (const box of document.querySelectorAll("details.confirm[open]")) {
      if (!box.contains(event.target)) box.open = false;
    }
    const button = event.target.closest?.("button[data-copy]");
    const source = button && document.getElementById(button.dataset.copy);
    if (source) {
      event.preventDefault();
      navigator.clipboard?.writeText(source.textContent).then(() => {
        button.textContent = "Copied";
      });
    }
  });

  // What new elements get from this script: charts that take the focus, and own tips in place of
  // the browser's.
  function prepare(root) {
    if (!(root instanceof Element)) return;
    for (const title of root.querySelectorAll(".hit[data-tip] > title")) title.remove();
    for (const svg of root.querySelectorAll(".plot svg")) svg.setAttribute("tabindex", "0");
    for (const hidden of root.querySelectorAll("[data-with-script][hidden]")) hidden.hidden = false;
  }

  // On a phone, the pages are in one row that scrolls: show where the reader is.
  const here = document.querySelector("nav [aria-current]");
  const row = here?.closest("nav");
  if (row && row.scrollWidth > row.clientWidth) {
    row.scrollLeft = here.offsetLeft - row.offsetLeft - (row.clientWidth - here.offsetWidth) / 2;
  }

  if (main) {
    prepare(main);
    setInterval(tick, 1000);
    if (document.body.hasAttribute("data-live")) {
      document.addEventListener("visibilitychange", visible);
      window.addEventListener("pagehide", close);
      window.addEventListener("pageshow", open);
      open();
    }
    const again = Number(document.body.dataset.again);
    if (again) setInterval(ask, again * 1000);
  }
})();
