// RequestList: a row for each sequence, running ones first, then those that wait in the order of the queue.
//
// Rows are kept from tick to tick, so that focus and scroll position stay where they are.
"use strict";

const MOST_ROWS = 200;

class RequestList {
  constructor(requests, palette, onPick) {
    this.requests = requests;
    this.palette = palette;
    this.onPick = onPick;
  }

  #rows = new Map();
  #list = byId("requests");

  show(pickedId) {
    const shown = this.requests.sequences.slice(0, MOST_ROWS);
    const ids = new Set(shown.map((one) => one.id));
    for (const [id, row] of this.#rows) {
      if (ids.has(id)) continue;
      row.item.remove();
      this.#rows.delete(id);
    }
    let before = this.#list.firstElementChild;
    for (const sequence of shown) {
      const row = this.#rows.get(sequence.id) ?? this.#make(sequence);
      this.#update(row, sequence, pickedId);
      if (row.item === before) before = before.nextElementSibling;
      else this.#list.insertBefore(row.item, before);
    }
    const running = this.requests.count("running");
    const pending = this.requests.count("pending");
    const more = this.requests.total - shown.length;
    const waiting = Quantity.count(this.requests.total - running - pending);
    const total = `${running} running, ${waiting} waiting${pending > 0 ? `, ${pending} pending` : ""}`;
    setText(byId("requests-total"), more > 0 ? `${total} (${Quantity.count(more)} not listed)` : total);
    byId("requests-none").hidden = shown.length > 0;
  }

  /** Scroll the list, and only the list, to a row. */
  reveal(id) {
    const item = this.#rows.get(id)?.item;
    if (!item) return;
    const list = this.#list;
    const top = item.offsetTop - list.offsetTop;
    const bottom = top + item.offsetHeight;
    if (top < list.scrollTop) list.scrollTop = top;
    else if (bottom > list.scrollTop + list.clientHeight) list.scrollTop = bottom - list.clientHeight;
  }

  #make(sequence) {
    const row = {
      swatch: element("i", "swatch"),
      name: element("span", "request-name"),
      pages: element("b", "request-pages"),
      status: element("span", "request-status"),
      age: element("span", "request-age"),
    };
    row.button = element("button", "", row.swatch, row.name, row.pages, row.status, row.age);
    row.button.type = "button";
    row.button.addEventListener("click", () => this.onPick(sequence.id));
    row.item = element("li", "", row.button);
    this.#rows.set(sequence.id, row);
    return row;
  }

  #update(row, sequence, pickedId) {
    const isRunning = sequence.status === "running";
    row.item.dataset.status = sequence.status;
    row.button.setAttribute("aria-pressed", String(sequence.id === pickedId));
    row.swatch.style.backgroundColor = sequence.handle > 0 ? css(this.palette.owner(sequence.handle)) : "";
    row.swatch.classList.toggle("swatch-none", sequence.handle === 0);
    setText(row.name, this.requests.name(sequence));
    row.button.title = sequence.id;
    setText(row.pages, sequence.pages > 0 ? Quantity.of(sequence.pages, "page") : "no pages");
    setText(row.status, isRunning ? this.#progress(sequence) : this.#wait(sequence));
    setText(row.age, Quantity.seconds(Math.floor(sequence.age_seconds)));
  }

  #progress(sequence) {
    const { prompt_tokens: prompt, computed_tokens: computed, output_tokens: output } = sequence;
    const often = sequence.preemptions > 0 ? `, preempted ${sequence.preemptions}×` : "";
    const whole = Quantity.count(prompt);
    if (output === 0) return `prompt, ${Quantity.count(Math.min(computed, prompt))} of ${whole} tokens${often}`;
    return `${whole} + ${Quantity.count(output)} tokens${often}`;
  }

  #wait(sequence) {
    if (sequence.status === "pending") return "waits for the prompt's first sample";
    const place = sequence.position ? `waits, no. ${sequence.position}` : "waits";
    const why = WAIT_REASONS[sequence.wait_reason];
    const often = sequence.preemptions > 0 ? `, preempted ${sequence.preemptions}×` : "";
    return `${place}${why ? `: ${why}` : ""}${often}`;
  }
}
