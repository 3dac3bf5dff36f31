// Elements of the document, made and changed without markup in strings, so that no text is ever taken for markup.
"use strict";

const byId = (id) => document.getElementById(id);

/** A new element with a class, and with children that are elements or texts. */
function element(tag, className = "", ...children) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.append(...children);
  return made;
}

/** Change a text only where it differs: what stays the same costs no layout. */
function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Rows of a definition list from pairs of a name and a text. */
function definitions(className, pairs) {
  const rows = pairs.map(([name, text]) => element("div", "", element("dt", "", name), element("dd", "", text)));
  return element("dl", className, ...rows);
}
