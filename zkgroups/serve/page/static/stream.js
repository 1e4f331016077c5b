// Follow the page by one stream of events. The browser connects again by itself, also after a restart of the server.

import { morph } from "./morph.js";

const SILENT_AFTER = 25_000; // in milliseconds: the server sends a sign of life every ten seconds

let stream = null;
let heard = performance.now();

function say(text) {
  const place = document.querySelector(".stream");
  if (place && place.textContent !== text) {
    place.textContent = text;
  }
}

function show({ title, html }) {
  const fresh = new DOMParser().parseFromString(html, "text/html").getElementById("view");
  const old = document.getElementById("view");
  if (fresh && old) {
    morph(old, document.adoptNode(fresh));
    document.title = title;
    tick();
  }
}

const here = () => location.pathname + location.search;

export function follow() {
  stream?.close();
  stream = new EventSource(`/events?view=${encodeURIComponent(here())}`);
  const isAlive = () => {
    heard = performance.now();
    say("");
  };
  stream.addEventListener("open", isAlive);
  stream.addEventListener("alive", isAlive);
  stream.addEventListener("view", (event) => {
    isAlive();
    show(JSON.parse(event.data));
  });
  stream.addEventListener("error", () => {
    say("Connection to zkgroups lost, connecting again");
    if (stream.readyState === EventSource.CLOSED) {
      setTimeout(follow, 2000); // the server answered with an error
    }
  });
}

// Go to another address of this page without loading everything again.
export async function visit(address, { remember = true } = {}) {
  try {
    const answer = await fetch(address, { headers: { Accept: "text/html" } });
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    if (!fresh.getElementById("view")) {
      throw new Error("not a page");
    }
    if (remember) {
      history.pushState(null, "", address);
    }
    show({ title: fresh.title, html: fresh.getElementById("view").outerHTML });
    follow();
  } catch {
    location.assign(address);
  }
}

// Let the age grow while nothing arrives.
let offset = 0; // the clock of the server minus that of this machine
let seenNow = 0;

function words(seconds) {
  const parts = [Math.floor(seconds / 86400), Math.floor(seconds / 3600) % 24, Math.floor(seconds / 60) % 60, seconds % 60];
  const first = Math.min(3, Math.max(0, parts.findIndex((part) => part > 0) === -1 ? 3 : parts.findIndex((part) => part > 0)));
  return parts.slice(first, first + 2).map((part, index) => [part, "dhms"[first + index]])
    .filter(([part], index) => part > 0 || (index === 0 && first === 3)).map((pair) => pair.join("")).join(" ");
}

function tick() {
  const now = Number(document.getElementById("view")?.dataset.now);
  if (now && now !== seenNow) {
    seenNow = now;
    offset = now - Date.now();
  }
  for (const place of document.querySelectorAll("[data-since]")) {
    const text = words(Math.max(0, Math.floor((Date.now() + offset - Number(place.dataset.since)) / 1000)));
    if (place.textContent !== text) {
      place.textContent = text;
    }
  }
  if (performance.now() - heard > SILENT_AFTER) {
    say("Connection to zkgroups lost, connecting again");
    heard = performance.now();
    follow();
  }
}

setInterval(tick, 1000);
