// PageMap: the map as a person uses it: it is drawn when something changed, pointed at, walked over with keys, zoomed.
//
// One page is looked at: the one under the pointer, else the one under the cursor while keys are used, else the pinned one.
// Invariant: at most one drawing per frame of the screen, however many events come.
"use strict";

const JUMP_ROWS = 10;
const SCROLL_BAR = 16; // CSS pixels left to it

class PageMap {
  /** `onOwner(handle)` when a page's holder is to be picked. */
  constructor(palette, card, onOwner) {
    Object.assign(this, { palette, card, onOwner });
    this.view = byId("map");
    this.sheet = byId("sheet");
    this.canvas = new PageCanvas(byId("cells"), palette);
    this.view.addEventListener("scroll", () => {
      this.#hover(0);
      this.#drawAll();
    });
    this.sheet.addEventListener("pointermove", (event) => event.pointerType === "mouse" && this.#point(event));
    this.sheet.addEventListener("pointerleave", () => this.#hover(0));
    this.sheet.addEventListener("click", (event) => this.#click(event));
    this.view.addEventListener("keydown", (event) => this.#key(event));
    this.view.addEventListener("focus", () => this.#focus(this.view.matches(":focus-visible")));
    this.view.addEventListener("blur", () => this.#focus(false));
    new ResizeObserver(() => this.arrange()).observe(byId("map-room"));
    addEventListener("scroll", () => this.card.refresh(), { passive: true });
    for (const [id, steps] of [["zoom-out", -1], ["zoom-fit", null], ["zoom-in", 1]])
      byId(id).addEventListener("click", () => this.zoom(steps));
  }

  table = null;
  grid = null;
  cursor = 1;
  hovered = 0;
  pinned = 0;
  #usesKeys = false;
  #frame = 0;
  #mustDrawAll = false;
  #spoken = 0;

  /** Show another pool: the first, or that of an engine that started anew. */
  show(table) {
    this.table = table;
    this.grid = new PageGrid(table.numPages);
    this.cursor = Math.min(this.cursor, table.numPages);
    this.pinned = 0;
    this.hovered = 0;
    this.arrange();
  }

  /** Something of the table changed. */
  refresh() {
    if (this.#frame === 0) this.#frame = requestAnimationFrame(() => this.#draw());
  }

  set colouring(value) {
    this.canvas.colouring = value;
    this.#drawAll();
  }

  set onlyGroup(index) {
    this.canvas.onlyGroup = index;
    this.#drawAll();
  }

  /** Light up these pages, and those that `handle` takes from now on; null: all. */
  pick(pages, handle) {
    this.canvas.picked = pages;
    this.canvas.pickedHandle = handle;
    this.#drawAll();
  }

  /** The room or the theme changed. */
  arrange() {
    if (this.table === null) return;
    const { grid, view } = this;
    const width = byId("map-room").clientWidth - 2; // without the border
    const room = parseFloat(getComputedStyle(view).maxHeight);
    grid.arrange(width, room, devicePixelRatio);
    if (grid.sheetHeight > room + 0.5) grid.arrange(width - SCROLL_BAR, room, devicePixelRatio);
    this.sheet.style.height = `${grid.sheetHeight}px`;
    this.canvas.arrange(this.table, grid, Math.min(room, grid.sheetHeight));
    byId("zoom-out").disabled = !grid.canZoomOut;
    byId("zoom-in").disabled = !grid.canZoomIn;
    this.#drawAll();
    this.#look();
  }

  /** So many steps larger or smaller; the page that is looked at stays in view. */
  zoom(steps) {
    if (this.table === null) return;
    this.grid.zoomBy(steps);
    this.arrange();
    this.#reveal(this.pinned || this.cursor);
  }

  /** Move to a page, pin it and show it. */
  go(page) {
    this.cursor = page;
    this.pinned = page;
    this.hovered = 0;
    this.#reveal(page);
    this.view.scrollIntoView({ block: "nearest" });
    this.#look();
  }

  unpin() {
    this.pinned = 0;
    this.#usesKeys = false;
    this.#look();
  }

  #drawAll() {
    this.#mustDrawAll = true;
    this.refresh();
  }

  #draw() {
    this.#frame = 0;
    if (this.table === null) return;
    const changed = this.table.takeChanged();
    if (this.#mustDrawAll) this.canvas.drawAll(this.view.scrollTop);
    else if (changed.length > 0) this.canvas.drawSome(changed);
    this.#mustDrawAll = false;
    this.card.refresh();
  }

  // ---- pointing

  #pageAt(event) {
    if (this.table === null) return 0;
    const box = this.sheet.getBoundingClientRect();
    return this.grid.pageAt(event.clientX - box.left, event.clientY - box.top);
  }

  #point(event) {
    this.#hover(this.#pageAt(event));
  }

  #hover(page) {
    if (page === this.hovered) return;
    this.hovered = page;
    this.#look();
  }

  #click(event) {
    const page = this.#pageAt(event);
    if (page === 0) return;
    this.cursor = page;
    this.#togglePin(page);
  }

  #togglePin(page) {
    this.pinned = this.pinned === page ? 0 : page;
    this.#look();
  }

  // ---- keys

  #focus(usesKeys) {
    this.#usesKeys = usesKeys;
    if (usesKeys) this.#speak();
    this.#look();
  }

  #key(event) {
    if (this.table === null || event.altKey || event.metaKey) return;
    const { grid } = this;
    const last = this.table.numPages;
    const rowStart = this.cursor - grid.column(this.cursor);
    const moves = {
      ArrowLeft: () => this.cursor - 1,
      ArrowRight: () => this.cursor + 1,
      ArrowUp: () => this.#down(-1),
      ArrowDown: () => this.#down(1),
      PageUp: () => this.#down(-JUMP_ROWS),
      PageDown: () => this.#down(JUMP_ROWS),
      Home: () => (event.ctrlKey ? 1 : rowStart),
      End: () => (event.ctrlKey ? last : rowStart + grid.columns - 1),
      n: () => this.table.nextOfHolder(this.cursor, 1),
      p: () => this.table.nextOfHolder(this.cursor, -1),
    };
    const acts = {
      Enter: () => this.#togglePin(this.cursor),
      " ": () => this.#togglePin(this.cursor),
      s: () => this.onOwner(this.table.holder(this.cursor)),
      "+": () => this.zoom(1),
      "=": () => this.zoom(1),
      "-": () => this.zoom(-1),
      0: () => this.zoom(null),
      Escape: () => this.unpin(),
    };
    const name = event.key.length === 1 ? event.key.toLowerCase() : event.key;
    if (name in moves) this.#move(Math.min(last, Math.max(1, moves[name]())));
    else if (name in acts && !event.ctrlKey) acts[name]();
    else return;
    event.preventDefault();
  }

  /** The page so many rows below, in the same column; as far as there are rows. */
  #down(rows) {
    const { grid, cursor } = this;
    const row = Math.min(grid.rows - 1, Math.max(0, grid.row(cursor) + rows));
    return row * grid.columns + grid.column(cursor) + 1;
  }

  #move(page) {
    this.cursor = page;
    this.hovered = 0;
    this.#usesKeys = true;
    this.#reveal(page);
    this.#look();
    this.#speak();
  }

  /** Once the cursor rests: readers would not keep up with a held key. */
  #speak() {
    clearTimeout(this.#spoken);
    this.#spoken = setTimeout(() => {
      if (this.table) setText(byId("spoken"), this.card.spoken(this.table, this.cursor));
    }, 150);
  }

  #reveal(page) {
    const { y, size } = this.grid.place(page);
    const { view } = this;
    if (y < view.scrollTop) view.scrollTop = y;
    else if (y + size > view.scrollTop + view.clientHeight) view.scrollTop = y + size - view.clientHeight;
  }

  // ---- what is looked at

  #look() {
    if (this.table === null) return;
    const cursor = this.hovered || (this.#usesKeys ? this.cursor : 0);
    this.#ring(byId("cursor"), cursor);
    this.#ring(byId("pin"), this.pinned);
    const page = cursor || this.pinned;
    if (page === 0) this.card.hide();
    else this.card.show(this.table, page, page === this.pinned, () => this.#rectangle(page));
  }

  #ring(ring, page) {
    ring.hidden = page === 0;
    if (page === 0) return;
    const { x, y, size } = this.grid.place(page);
    ring.style.transform = `translate(${x}px, ${y}px)`;
    ring.style.width = ring.style.height = `${size}px`;
  }

  /** A page's cell in the window; null where the map does not show it now. */
  #rectangle(page) {
    const { x, y, size } = this.grid.place(page);
    const sheet = this.sheet.getBoundingClientRect();
    const view = this.view.getBoundingClientRect();
    const top = sheet.top + y;
    if (top + size <= view.top || top >= view.bottom) return null;
    return { left: sheet.left + x, right: sheet.left + x + size, top, bottom: top + size };
  }
}
