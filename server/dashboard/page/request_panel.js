// RequestPanel: all about the picked request: why it waits or was preempted, what it has cost, where its pages are.
//
// Asks the server about once a second while a request is picked. After its end the panel keeps what was known last.
"use strict";

const ASK_SECONDS = 1;
const MOST_RUNS = 60;

class RequestPanel {
  /**
   * `onShown` when another request is first shown, `onPages(ids or null)` when its pages are known, `onPage(page)` when one
   * of them is chosen.
   */
  constructor(source, requests, { onShown, onPages, onPage, onClose }) {
    Object.assign(this, { source, requests, onShown, onPages, onPage });
    byId("request-close").addEventListener("click", onClose);
  }

  id = null;
  #asked = -Infinity;
  #isAsking = false;
  #told = "";

  /** Show another request, or none. */
  pick(id) {
    this.id = id;
    this.#asked = -Infinity;
    this.#told = "";
    byId("request").hidden = id === null;
    byId("request-body").replaceChildren();
    if (id === null) return;
    const sequence = this.requests.ofId(id);
    setText(byId("request-title"), sequence ? this.requests.name(sequence) : id);
    byId("request-title").title = id;
    this.#isAsking = false;
    this.refresh();
  }

  /** Ask again where it is time to. */
  async refresh() {
    const { id, requests } = this;
    if (id === null) return;
    if (!requests.ofId(id) && requests.isWhole) return this.#end();
    if (this.#isAsking || performance.now() - this.#asked < 1000 * ASK_SECONDS) return;
    this.#isAsking = true;
    this.#asked = performance.now();
    const report = await this.source.read(`requests/${encodeURIComponent(id)}`);
    if (this.id !== id) return; // another one was picked meanwhile
    this.#isAsking = false;
    if (report) this.#show(report);
    else if (!this.requests.ofId(id)) this.#end();
  }

  #end() {
    this.onPages(null);
    const body = byId("request-body");
    if (body.firstElementChild?.classList.contains("request-over")) return;
    body.querySelector(".request-text")?.remove();
    const text = "It has ended. Its pages went back to the pool: full blocks are cached, the rest is free.";
    body.prepend(element("p", "request-over", text));
    this.#asked = Infinity; // and stays so
  }

  #show(report) {
    const pages = Object.values(report.pages).flat();
    this.onPages(pages.length > 0 ? new Set(pages) : null);
    const told = JSON.stringify(report);
    if (told === this.#told) return;
    const isFirst = this.#told === "";
    this.#told = told;
    const body = byId("request-body");
    const focused = body.contains(document.activeElement) ? document.activeElement.dataset.page : undefined;
    body.replaceChildren(
      element("p", "request-text", this.requests.withNames(report.text)),
      definitions("ledger", this.#standing(report)),
      ...this.#preemptions(report.ledger.preemptions, report.id),
      element("h3", "", "Ledger"),
      definitions("ledger", this.#ledger(report.ledger)),
      element("h3", "", "Pages"),
      ...this.#pages(report.pages),
    );
    if (focused !== undefined) body.querySelector(`[data-page="${focused}"]`)?.focus({ preventScroll: true });
    if (isFirst) this.onShown();
  }

  #standing({ status, tenant, tokens, position, expected_start_seconds: start, wait_reason: reason, ...report }) {
    const pairs = [["Status", status]];
    if (tenant) pairs.push(["Tenant", tenant]);
    pairs.push(["Tokens computed", `${Quantity.count(tokens.computed)} of ${Quantity.count(tokens.total)}`]);
    pairs.push(["Tokens generated", Quantity.count(tokens.generated)]);
    if (status === "running") return pairs;
    if (position) pairs.push(["Place in the queue", String(position)]);
    if (start !== null) pairs.push(["Expected start", `in ${Quantity.seconds(start)}`]);
    if (reason === "pages") {
      pairs.push(["Pages wanted", Quantity.count(report.wanted_pages)]);
      pairs.push(["Pages available", Quantity.count(report.available_pages)]);
    }
    return pairs;
  }

  #preemptions(notes, id) {
    if (notes.length === 0) return [];
    const rows = notes.map((note) => {
      const lost = `${Quantity.of(note.tokens_to_recompute, "token")} to compute again`;
      const how = note.kind === "swap" ? "moved to host memory" : lost;
      const requester = this.requests.withNames(note.requester);
      const whom = note.requester === id ? "older requests kept their pages" : `for ${requester}`;
      const what = `${whom} (${note.cause}): ${Quantity.of(note.pages_freed, "page")} freed, ${how}`;
      return element("li", "", element("b", "", `after ${Quantity.seconds(note.seconds)} `), what);
    });
    return [element("h3", "", `Preempted ${notes.length}×`), element("ul", "preemptions", ...rows)];
  }

  #ledger(ledger) {
    const seconds = (value) => (value === null ? NONE : Quantity.seconds(value));
    const pairs = [
      ["Queued", seconds(ledger.queue_seconds)],
      ["Prefill", seconds(ledger.prefill_seconds)],
      ["Decode", seconds(ledger.decode_seconds)],
      ["Most pages", Quantity.count(ledger.peak_pages)],
      ["Page-seconds", Quantity.count(ledger.page_seconds)],
      ["Tokens from cache", Quantity.count(ledger.cached_tokens)],
      ["Tokens recomputed", Quantity.count(ledger.recomputed_tokens)],
    ];
    const { draft_tokens: drafts, accepted_draft_tokens: accepted } = ledger;
    if (drafts > 0) pairs.push(["Drafts that stood", `${accepted} of ${drafts}`]);
    if (ledger.rotations > 0) pairs.push(["Rotations", Quantity.count(ledger.rotations)]);
    return pairs;
  }

  #pages(groups) {
    const made = [];
    for (const [group, pages] of Object.entries(groups)) {
      const runs = Quantity.runs(pages);
      const chips = runs.slice(0, MOST_RUNS).map(([first, last]) => this.#chip(first, last));
      const rest = runs.length - MOST_RUNS;
      if (rest > 0) chips.push(element("span", "more", `and ${Quantity.of(rest, "run")} more`));
      const count = ` ${Quantity.of(pages.length, "page")}, in the order of the text`;
      made.push(element("p", "group-head", element("b", "", group), count), element("p", "chips", ...chips));
    }
    return made.some((one) => one.querySelector("button")) ? made : [element("p", "empty", "It holds no page now.")];
  }

  #chip(first, last) {
    const chip = element("button", "chip", first === last ? String(first) : `${first}–${last}`);
    chip.type = "button";
    chip.dataset.page = first;
    chip.addEventListener("click", () => this.onPage(first));
    return chip;
  }
}
