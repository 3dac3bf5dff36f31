// PageCard: what is known of one page, beside its cell, and in words for who does not see it.
//
// The feed tells state, group, fill and one holder; all owners, hash and age are asked for once a page is looked at for a
// moment, and again while it is.
"use strict";

const REST = 120; // milliseconds before a page is asked for
const ASK_AGAIN = 1000;

class PageCard {
  constructor(source, requests, palette, onPick) {
    Object.assign(this, { source, requests, palette, onPick });
    this.card = byId("card");
  }

  #page = 0;
  #row = null;
  #timer = 0;
  #drawn = "";

  /**
   * Show a page beside `place()`, a rectangle of the window, null while its cell is scrolled out of sight; `isPinned` pages
   * stay, and their owners can be picked.
   */
  show(table, page, isPinned, place) {
    if (page !== this.#page) {
      this.#page = page;
      this.#row = null;
      clearTimeout(this.#timer);
      if (table.state(page) !== FREE) this.#timer = setTimeout(() => this.#ask(table, page), REST);
    }
    Object.assign(this, { table, isPinned, place });
    this.#draw();
  }

  hide() {
    clearTimeout(this.#timer);
    this.#page = 0;
    this.card.hidden = true;
  }

  /** The page has perhaps changed, or moved. */
  refresh() {
    if (this.#page > 0) this.#draw();
  }

  async #ask(table, page) {
    const row = await this.source.read(`pages/${page}`);
    if (page !== this.#page) return;
    this.#row = row;
    this.#draw();
    this.#timer = setTimeout(() => this.#ask(table, page), ASK_AGAIN);
  }

  /** Those who hold the page: {id, name, handle}, as far as they are known. */
  #owners() {
    const handle = this.table.holder(this.#page);
    if (this.table.state(this.#page) !== HELD) return [];
    if (this.#row?.owners?.length > 0) {
      return this.#row.owners.map(({ id, request_id }) => {
        const sequence = this.requests.ofId(id);
        const name = sequence ? this.requests.name(sequence) : request_id || id;
        return { id, name, handle: sequence?.handle ?? 0, age: sequence?.age_seconds };
      });
    }
    const sequence = this.requests.ofHandle(handle);
    return sequence ? [{ id: sequence.id, name: this.requests.name(sequence), handle, age: sequence.age_seconds }] : [];
  }

  /** The page in pairs of a name and a text. */
  #facts(owners) {
    const { table } = this;
    const page = this.#page;
    const state = table.state(page);
    if (state === FREE) return [["In no block", "nobody holds it, nothing is in it"]];
    const facts = [["Group", table.groupNames[table.group(page)] ?? NONE]];
    facts.push(["Filled", `${table.fill(page)} of ${table.blockSize} tokens`]);
    if (state === HELD) {
      const count = table.refCount(page);
      facts.push(["Shared", count > 1 ? `by ${count === 255 ? "255 or more" : count} sequences` : "no"]);
      const ages = owners.map((one) => one.age).filter((age) => age !== undefined);
      if (ages.length > 0) facts.push(["Request's age", Quantity.seconds(Math.max(...ages))]);
    }
    const unused = this.#row?.cached_seconds;
    if (state === CACHED) facts.push(["Unused for", unused == null ? "…" : Quantity.seconds(unused)]);
    if (this.#row?.hash) facts.push(["Hash", `…${this.#row.hash}`]);
    return facts;
  }

  /** In a sentence. */
  spoken(table, page) {
    this.table = table;
    const state = table.state(page);
    if (state === FREE) return `Page ${page}, free`;
    const parts = [`Page ${page}, ${STATE_NAMES[state]}`, `group ${table.groupNames[table.group(page)] ?? "none"}`];
    parts.push(`${table.fill(page)} of ${table.blockSize} tokens`);
    const sequence = this.requests.ofHandle(table.holder(page));
    if (state === HELD && sequence) parts.push(`held by ${this.requests.name(sequence)}`);
    if (table.isShared(page)) parts.push(`shared by ${table.refCount(page)}`);
    return parts.join(", ");
  }

  #draw() {
    const { table, card } = this;
    const page = this.#page;
    const state = table.state(page);
    const owners = this.#owners();
    const facts = this.#facts(owners);
    const colours = owners.map(({ name, handle }) => [name, handle && this.palette.owner(handle)]);
    const drawn = JSON.stringify([page, state, colours, facts, this.isPinned]);
    if (drawn !== this.#drawn || card.hidden) {
      this.#drawn = drawn;
      card.replaceChildren(
        element("p", "card-title", element("b", "", `Page ${Quantity.count(page)}`), this.#badge(state)),
        ...(owners.length > 0 ? [element("ul", "card-owners", ...owners.slice(0, 8).map((one) => this.#owner(one)))] : []),
        definitions("card-facts", facts),
      );
      if (owners.length > 8) card.querySelector("ul").append(element("li", "", `and ${owners.length - 8} more`));
      card.classList.toggle("is-pinned", this.isPinned);
      card.role = this.isPinned ? "group" : "tooltip";
      card.hidden = false;
    }
    this.#put();
  }

  #badge(state) {
    return element("span", "badge", element("i", `swatch swatch-${STATE_NAMES[state]}`), STATE_NAMES[state]);
  }

  #owner({ id, name, handle }) {
    const swatch = element("i", "swatch");
    if (handle > 0) swatch.style.backgroundColor = css(this.palette.owner(handle));
    else swatch.classList.add("swatch-none");
    const shown = this.isPinned ? element("button", "card-owner", name) : element("span", "card-owner", name);
    if (this.isPinned) {
      shown.type = "button";
      shown.title = "Pick this request";
      shown.addEventListener("click", () => this.onPick(id));
    }
    return element("li", "", swatch, shown);
  }

  /** Beside the cell, inside the window. */
  #put() {
    const { card } = this;
    const cell = this.place();
    card.style.visibility = cell ? "visible" : "hidden";
    if (!cell) return;
    const width = card.offsetWidth;
    const height = card.offsetHeight;
    const right = cell.right + 10;
    const left = right + width <= innerWidth - 8 ? right : cell.left - width - 10;
    const below = cell.bottom + 10;
    const top = left < 8 && below + height > innerHeight - 8 ? cell.top - height - 10 : left < 8 ? below : cell.top - 4;
    card.style.left = `${Math.min(Math.max(8, left), Math.max(8, innerWidth - width - 8))}px`;
    card.style.top = `${Math.min(Math.max(8, top), Math.max(8, innerHeight - height - 8))}px`;
  }
}
