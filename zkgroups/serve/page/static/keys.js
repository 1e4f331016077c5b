// The keyboard: / searches, j and k move, Enter opens, u goes back, Escape leaves the search.

const rows = () => [...document.querySelectorAll("main tbody tr[data-key]")];

function move(step) {
  const all = rows();
  if (!all.length) {
    return;
  }
  const current = all.findIndex((row) => row.classList.contains("current"));
  const next = all[Math.min(all.length - 1, Math.max(0, current + step))];
  all[current]?.classList.remove("current");
  next.classList.add("current");
  next.scrollIntoView({ block: "nearest" });
  next.querySelector("a")?.focus({ preventScroll: true });
}

export function listen() {
  document.addEventListener("keydown", (event) => {
    const isTyping = event.target.matches?.("input, textarea, select");
    if (event.ctrlKey || event.metaKey || event.altKey) {
      return;
    }
    if (isTyping) {
      if (event.key === "Escape") {
        event.target.blur();
      }
      return;
    }
    const search = document.getElementById("search");
    const actions = {
      "/": () => search?.focus(),
      j: () => move(1),
      k: () => move(-1),
      u: () => document.getElementById("back")?.click(),
    };
    if (actions[event.key]) {
      event.preventDefault();
      actions[event.key]();
    }
  });
}
