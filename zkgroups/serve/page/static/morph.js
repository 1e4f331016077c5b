// Change a part of the document into another one, and touch only what differs.
// So the focus, the scroll position, a text being typed and a selection stay.

const keyOf = (node) => (node.nodeType === Node.ELEMENT_NODE ? node.getAttribute("data-key") : null);

const isSameKind = (old, fresh) =>
  old.nodeType === fresh.nodeType && old.nodeName === fresh.nodeName && keyOf(old) === keyOf(fresh);

function morphAttributes(old, fresh) {
  for (const { name } of [...old.attributes]) {
    if (!fresh.hasAttribute(name) && !(name === "class" && old.classList.contains("current"))) {
      old.removeAttribute(name);
    }
  }
  for (const { name, value } of fresh.attributes) {
    const wanted = name === "class" && old.classList.contains("current") ? `${value} current`.trim() : value;
    if (old.getAttribute(name) !== wanted) {
      old.setAttribute(name, wanted);
    }
  }
}

export function morph(old, fresh) {
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== fresh.data) {
      old.data = fresh.data;
    }
    return;
  }
  morphAttributes(old, fresh);
  if (old.matches?.("input, .stream")) {
    return; // the reader's text, and the state of this very connection
  }
  const keyed = new Map();
  for (const child of old.childNodes) {
    if (keyOf(child) !== null) {
      keyed.set(keyOf(child), child);
    }
  }
  let place = old.firstChild;
  for (const child of [...fresh.childNodes]) {
    const key = keyOf(child);
    const known = key === null ? place : keyed.get(key);
    if (known && isSameKind(known, child)) {
      if (known !== place) {
        old.insertBefore(known, place);
      } else {
        place = place.nextSibling;
      }
      morph(known, child);
    } else {
      old.insertBefore(child, place);
    }
  }
  while (place) {
    const next = place.nextSibling;
    place.remove();
    place = next;
  }
}
