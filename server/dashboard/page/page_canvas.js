// PageCanvas: the cells that are in view, as pixels.
//
//     free          cached          held, 10 of 16 filled     held, shared      held, second group
//     ░░░░░░░       ░░░░░░░         ▒▒▒▒▒▒▒                   █████░░           ███████
//     ░░░░░░░       ░░███░░         ███████                   ██████░           ███████
//     ░░░░░░░       ░░░░░░░         ███████                   ███████           █░█████
//
// State is told by shape, and by colour too. Cells are written into a buffer of the view's size and the part that changed
// is put on the canvas at once, so a tick costs what changed, however many pages there are. Knows no events and no feed.
"use strict";

const DETAIL_SIZE = 5; // device pixels of a cell's face from which on it shows fill, shape and marks
const NOTCH_SIZE = 20; // and from which on it shows its group

class PageCanvas {
  constructor(canvas, palette) {
    this.canvas = canvas;
    this.palette = palette;
    this.colouring = "state";
    this.onlyGroup = null;
    this.picked = null; // the pages of the picked request; all others are dimmed, but for what its handle holds
    this.pickedHandle = 0;
    this.drawSeconds = new Float64Array(64);
    this.numDraws = 0;
  }

  #context = null;
  #image = null;
  #pixels = null;
  #top = 0;

  /** Show `table`, arranged in `grid`; everything is to be drawn again. */
  arrange(table, grid, cssHeight) {
    this.table = table;
    this.grid = grid;
    const width = grid.gutter + grid.columns * grid.cell;
    const height = Math.min(Math.ceil(cssHeight * grid.ratio), grid.rows * grid.cell);
    if (this.#context === null || this.canvas.width !== width || this.canvas.height !== height) {
      this.canvas.width = width;
      this.canvas.height = height;
      this.canvas.style.width = `${width / grid.ratio}px`;
      this.canvas.style.height = `${height / grid.ratio}px`;
      this.#context = this.canvas.getContext("2d", { alpha: false });
      this.#image = this.#context.createImageData(width - grid.gutter, height);
      this.#pixels = new Uint32Array(this.#image.data.buffer);
    }
  }

  /** Draw every cell in view, the sheet scrolled down by `scrollTop` CSS pixels. */
  drawAll(scrollTop) {
    const start = performance.now();
    const { grid } = this;
    this.#readColours();
    this.#top = Math.round(scrollTop * grid.ratio);
    this.#pixels.fill(this.#panel);
    const first = Math.max(1, Math.floor(this.#top / grid.cell) * grid.columns + 1);
    const last = Math.min(grid.numPages, Math.ceil((this.#top + this.canvas.height) / grid.cell) * grid.columns);
    for (let page = first; page <= last; page += 1) this.#draw(page);
    this.#context.putImageData(this.#image, grid.gutter, 0);
    this.#number();
    this.#note(start);
  }

  /** Draw these pages, as far as they are in view. */
  drawSome(pages) {
    const start = performance.now();
    const { grid } = this;
    let top = Infinity;
    let bottom = -1;
    for (const page of pages) {
      const y = grid.row(page) * grid.cell - this.#top;
      if (y + grid.cell <= 0 || y >= this.canvas.height) continue;
      this.#draw(page);
      if (y < top) top = y;
      if (y > bottom) bottom = y;
    }
    if (bottom >= top) {
      const from = Math.max(0, top);
      const rows = Math.min(this.canvas.height, bottom + grid.cell) - from;
      this.#context.putImageData(this.#image, grid.gutter, 0, 0, from, this.#image.width, rows);
    }
    this.#note(start);
  }

  /** The median of the latest draws, in seconds. */
  get medianDraw() {
    const taken = Array.from(this.drawSeconds.subarray(0, Math.min(this.numDraws, this.drawSeconds.length)));
    return taken.sort((a, b) => a - b)[taken.length >> 1] ?? 0;
  }

  #note(start) {
    this.drawSeconds[this.numDraws % this.drawSeconds.length] = (performance.now() - start) / 1000;
    this.numDraws += 1;
  }

  #panel = 0;
  #colours = new Map();

  #readColours() {
    this.#panel = pixel(this.palette.panel);
    this.#colours.clear();
  }

  /** The four colours of a cell: its floor, its body, what of it is not filled, and its marks. */
  #coloursOf(state, group, holder, isDim) {
    const owner = this.colouring === "owner" && state === HELD ? holder : 0;
    const key = ((owner * 8 + (group & 7)) * 4 + state) * 2 + (isDim ? 1 : 0);
    let colours = this.#colours.get(key);
    if (colours === undefined) {
      const { palette } = this;
      const dim = (colour) => (isDim ? mix(colour, palette.panel, 0.8) : colour);
      let body = state === HELD ? palette.held : palette.cached;
      if (owner) body = palette.owner(owner);
      else if (this.colouring === "group" && state !== FREE) body = palette.group(group);
      else if (this.colouring === "owner" && state === CACHED) body = palette.muted;
      const floor = dim(palette.free);
      const empty = mix(body, palette.free, 0.72);
      colours = [floor, dim(body), dim(empty), dim(palette.mark)].map(pixel);
      if (this.#colours.size > 8192) this.#colours.clear();
      this.#colours.set(key, colours);
    }
    return colours;
  }

  #isDim(page, group) {
    if (this.onlyGroup !== null && (group !== this.onlyGroup || this.table.state(page) === FREE)) return true;
    if (this.picked === null || this.picked.has(page)) return false;
    return this.pickedHandle === 0 || this.table.holder(page) !== this.pickedHandle;
  }

  #draw(page) {
    const { grid, table } = this;
    const word = table.words[2 * page];
    const state = word & 0xff;
    const group = (word >>> 8) & 0xff;
    const colours = this.#coloursOf(state, group, table.words[2 * page + 1], this.#isDim(page, group));
    const size = grid.cell;
    const gap = size < 4 ? 0 : size >= 5 * grid.ratio ? Math.round(grid.ratio) : 1;
    const face = size - gap;
    const x = grid.column(page) * size;
    const y = grid.row(page) * size - this.#top;
    if (face < DETAIL_SIZE) {
      this.#box(x, y, face, face, state === FREE ? colours[0] : colours[1]);
      return;
    }
    if (state === FREE) {
      this.#box(x, y, face, face, colours[0]);
      return;
    }
    if (state === CACHED) {
      const inset = Math.max(1, Math.round(face * 0.25));
      this.#box(x, y, face, face, colours[0]);
      this.#box(x + inset, y + inset, face - 2 * inset, face - 2 * inset, colours[1]);
    } else {
      const fill = (word >>> 16) & 0xff;
      const empty = face - Math.round((face * fill) / table.blockSize);
      this.#box(x, y, face, empty, colours[2]);
      this.#box(x, y + empty, face, face - empty, colours[1]);
      if (word >>> 24 > 1) {
        const corner = Math.max(2, Math.round(face * 0.45));
        for (let line = 0; line < corner; line += 1)
          this.#box(x + face - corner + line, y + line, corner - line, 1, colours[3]);
      }
    }
    if (group > 0 && face >= NOTCH_SIZE) {
      const notch = Math.max(2, Math.round(face * 0.16));
      for (let index = 0; index < Math.min(group, 3); index += 1)
        this.#box(x + notch * (1 + 2 * index), y + face - 2 * notch, notch, notch, colours[state === HELD ? 3 : 1]);
    }
  }

  #box(x, y, width, height, colour) {
    const pixels = this.#pixels;
    const stride = this.#image.width;
    const end = Math.min(y + height, this.#image.height);
    for (let line = Math.max(0, y); line < end; line += 1) {
      const from = line * stride + x;
      for (let at = from; at < from + width; at += 1) pixels[at] = colour;
    }
  }

  /** Page numbers in the gutter: those of rows far enough apart to be read. */
  #number() {
    const { grid, palette } = this;
    if (grid.gutter === 0) return;
    const context = this.#context;
    context.fillStyle = css(palette.panel);
    context.fillRect(0, 0, grid.gutter, this.canvas.height);
    context.fillStyle = css(palette.muted);
    context.font = `${10 * grid.ratio}px ${getComputedStyle(document.body).fontFamily}`;
    context.textAlign = "right";
    context.textBaseline = "middle";
    const every = Math.max(1, Math.ceil((18 * grid.ratio) / grid.cell));
    const half = 6 * grid.ratio; // of a number's height
    const first = Math.ceil(this.#top / grid.cell / every) * every;
    for (let row = first; row < grid.rows; row += every) {
      const y = Math.max(half, row * grid.cell - this.#top + grid.cell / 2);
      if (y > this.canvas.height) break;
      context.fillText(Quantity.count(row * grid.columns + 1), grid.gutter - 8 * grid.ratio, y);
    }
  }
}
