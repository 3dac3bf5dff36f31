// PageGrid: where each page lies on the sheet, in device pixels: pages row by row, from page 1 at the top left.
//
// Knows sizes and page numbers only. It fits the whole pool into the room where cells of 3 CSS pixels or more allow it;
// a larger sheet is scrolled. Zooming walks through CELL_SIZES, below 3 pixels only as far as shows more of the pool.
"use strict";

const CELL_SIZES = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 14, 16, 18, 20, 24, 28, 32, 40];
const SMALLEST_FIT = 3;
const LARGEST_FIT = 28;
const MOST_BLANK = 0.025; // of the width
const GUTTER = 46; // CSS pixels for page numbers, where there is room for them
const ROOM_FOR_GUTTER = 560;

class PageGrid {
  constructor(numPages) {
    this.numPages = numPages;
    this.zoom = null; // null: fit
  }

  /** Arrange the pages for a view of so many CSS pixels, at `ratio` device pixels each. */
  arrange(width, height, ratio) {
    this.ratio = ratio;
    this.gutter = width >= ROOM_FOR_GUTTER ? Math.round(GUTTER * ratio) : 0;
    this.width = Math.floor(width * ratio) - this.gutter;
    this.height = Math.floor(height * ratio);
    const fitting = CELL_SIZES.filter((size) => this.#rows(size) * this.#device(size) <= this.height);
    this.fit = Math.min(LARGEST_FIT, Math.max(SMALLEST_FIT, fitting.at(-1) ?? SMALLEST_FIT));
    this.smallest = Math.min(this.fit, fitting.at(-1) ?? CELL_SIZES[0]);
    this.size = Math.max(this.smallest, this.zoom ?? this.fit);
    this.cell = this.#device(this.size);
    this.columns = this.#columns(this.size);
    this.rows = this.#rows(this.size);
  }

  #device(size) {
    return Math.max(1, Math.round(size * this.ratio));
  }

  /** A round number where that leaves next to nothing of the width blank, so that page numbers at the margin are round. */
  #columns(size) {
    const columns = Math.max(1, Math.floor(this.width / this.#device(size)));
    const step = [10, 5, 2].find((one) => columns % one <= columns * MOST_BLANK) ?? 1;
    return Math.min(columns - (columns % step), this.numPages);
  }

  #rows(size) {
    return Math.ceil(this.numPages / this.#columns(size));
  }

  /** CSS pixels of the whole sheet. */
  get sheetHeight() {
    return (this.rows * this.cell) / this.ratio;
  }

  /** Zoom by so many steps; null fits again. Needs an `arrange` after it. */
  zoomBy(steps) {
    if (steps === null) {
      this.zoom = null;
      return;
    }
    const at = CELL_SIZES.indexOf(this.size) + steps;
    const size = CELL_SIZES[Math.min(CELL_SIZES.length - 1, Math.max(0, at))];
    this.zoom = Math.max(size, this.smallest);
  }

  get canZoomOut() {
    return this.size > this.smallest;
  }

  get canZoomIn() {
    return this.size < CELL_SIZES.at(-1);
  }

  row(page) {
    return Math.floor((page - 1) / this.columns);
  }

  column(page) {
    return (page - 1) % this.columns;
  }

  /** The page at a point of the sheet in CSS pixels; 0 where there is none. */
  pageAt(x, y) {
    const column = Math.floor((x * this.ratio - this.gutter) / this.cell);
    const row = Math.floor((y * this.ratio) / this.cell);
    if (column < 0 || column >= this.columns || row < 0 || row >= this.rows) return 0;
    const page = row * this.columns + column + 1;
    return page <= this.numPages ? page : 0;
  }

  /** A cell on the sheet in CSS pixels. */
  place(page) {
    return {
      x: (this.gutter + this.column(page) * this.cell) / this.ratio,
      y: (this.row(page) * this.cell) / this.ratio,
      size: this.cell / this.ratio,
    };
  }
}
