// Make the page live. Without this script it shows the same, as of when it was loaded.

import { listen } from "./keys.js";
import { follow, visit } from "./stream.js";

const isOurs = (link) => link.origin === location.origin && /^\/($|groups\/|topics)/.test(link.pathname);

document.addEventListener("click", (event) => {
  const link = event.target.closest?.("a");
  const isPlain = event.button === 0 && !event.ctrlKey && !event.metaKey && !event.shiftKey && !event.altKey;
  if (link && isPlain && isOurs(link)) {
    event.preventDefault();
    const isOtherPage = link.pathname !== location.pathname;
    visit(link.href).then(() => isOtherPage && scrollTo(0, 0));
  }
});

addEventListener("popstate", () => visit(location.href, { remember: false }));

// Search while typing.
let waiting = 0;
const searchFor = (form) => {
  const wanted = new URL(form.action);
  for (const [name, value] of new FormData(form)) {
    if (value) {
      wanted.searchParams.set(name, value);
    }
  }
  visit(wanted.href);
};
document.addEventListener("input", (event) => {
  if (event.target.id === "search") {
    clearTimeout(waiting);
    waiting = setTimeout(() => searchFor(event.target.form), 200);
  }
});
document.addEventListener("submit", (event) => {
  event.preventDefault();
  clearTimeout(waiting);
  searchFor(event.target);
});

// Light, dark, or as the system says.
const THEMES = ["", "dark", "light"];
const setTheme = (theme) => {
  document.documentElement.dataset.theme = theme;
  document.getElementById("theme").textContent = `Theme: ${theme || "system"}`;
};
const button = document.getElementById("theme");
setTheme(localStorage.getItem("theme") ?? "");
button.hidden = false;
button.addEventListener("click", () => {
  const theme = THEMES[(THEMES.indexOf(document.documentElement.dataset.theme) + 1) % THEMES.length];
  localStorage.setItem("theme", theme);
  setTheme(theme);
});

listen();
follow();
