// Fetches the page again and again, and replaces its content where that has changed. Without this script it is the same
// page, as of when it was loaded.
"use strict";
(() => {
  const live = document.getElementById("live");
  const main = document.querySelector("main");
  const every = 1000 * Math.max(1, Number(main.dataset.refresh) || 5);
  const loaded = main.innerHTML;
  let tag = null;
  let paused = false;
  let ahead = 0; // by which the server's clock is ahead of this one

  const button = document.createElement("button");
  button.type = "button";
  const status = document.createElement("span");
  status.setAttribute("role", "status");
  live.append(status, button);

  function show(words, state) {
    if (status.textContent !== words) status.textContent = words;
    live.dataset.state = state;
  }

  function label() {
    button.textContent = paused ? "Resume updates" : "Pause updates";
    show(paused ? "Paused" : "Live", paused ? "paused" : "live");
  }

  button.addEventListener("click", () => {
    paused = !paused;
    label();
    if (!paused) update();
  });

  // What the reader has opened, and where the keyboard is, stays as it is.
  function replace(text) {
    const page = new DOMParser().parseFromString(text, "text/html");
    const next = page.querySelector("main");
    if (next === null || (tag === null && next.innerHTML === loaded)) return;
    const opened = new Set([...main.querySelectorAll("details[open]")].map((each) => each.id));
    const focused = main.contains(document.activeElement) ? mark(document.activeElement) : null;
    for (const each of next.querySelectorAll("details")) each.open = opened.has(each.id);
    main.replaceChildren(...next.childNodes);
    document.querySelector("footer").replaceWith(page.querySelector("footer"));
    document.title = page.title;
    if (focused !== null) {
      const same = [...main.querySelectorAll("a, summary, [tabindex]")].find((each) => mark(each) === focused);
      if (same) same.focus({ preventScroll: true });
    }
  }

  function mark(element) {
    return element.dataset.key || element.getAttribute("href") || element.closest("[id]")?.id || element.textContent;
  }

  function isBusy() {
    const field = document.activeElement;
    const writes = field && main.contains(field) && ["INPUT", "SELECT", "BUTTON"].includes(field.tagName);
    return writes || String(document.getSelection()).length > 0;
  }

  async function update() {
    if (paused || document.hidden || isBusy()) return;
    try {
      const got = await fetch(location.href, { headers: { Accept: "text/html" }, cache: "no-cache" });
      const sent = Date.parse(got.headers.get("Date"));
      if (!Number.isNaN(sent)) ahead = sent - Date.now();
      if (!got.ok) {
        show(`Not updated: ${got.status}`, "failed");
        return;
      }
      const found = got.headers.get("ETag");
      if (tag !== found || found === null) {
        const text = await got.text();
        if (paused || isBusy()) return;
        replace(text);
        tag = found;
      }
      label();
    } catch {
      show("Not reachable", "failed");
    }
    count();
  }

  // Countdowns go on between updates.
  function count() {
    if (paused) return;
    for (const each of main.querySelectorAll("time[data-countdown]")) {
      const left = Math.round((Date.parse(each.dateTime) - Date.now() - ahead) / 1000);
      const words = left > 0 ? `in ${duration(left)}` : "due";
      if (each.textContent !== words) each.textContent = words;
    }
  }

  function duration(seconds) {
    const parts = [];
    for (const [unit, size] of [["d", 86400], ["h", 3600], ["m", 60], ["s", 1]]) {
      const amount = Math.floor(seconds / size);
      seconds -= amount * size;
      if (amount) parts.push(`${amount}${unit}`);
    }
    return parts.slice(0, 2).join("") || "0s";
  }

  label();
  update();
  setInterval(update, every);
  setInterval(count, 1000);
})();
