// PageTable: what is known of every page, two words each, as the feed tells it.
//
//     word 0   state | group << 8 | fill << 16 | ref_count << 24
//     word 1   handle of one holder
//
// Knows nothing of the screen. Invariants: the counts are those of the rows; a page is in `changed` once, from the tick
// that changed it until `takeChanged`.
"use strict";

const FREE = 0;
const CACHED = 1;
const HELD = 2;
const STATE_NAMES = ["free", "cached", "held"];

class PageTable {
  constructor(layout) {
    this.layout = layout;
    this.numPages = layout.num_pages;
    this.blockSize = layout.block_size;
    this.groupNames = layout.groups;
    this.words = new Uint32Array(2 * (this.numPages + 1)); // page 0 is the null page, which nobody has
    this.counts = [this.numPages, 0, 0];
    this.numShared = 0;
    this.#isChanged = new Uint8Array(this.numPages + 1);
    this.#changed = new Uint32Array(this.numPages);
  }

  #isChanged;
  #changed;
  #numChanged = 0;

  state(page) {
    return this.words[2 * page] & 0xff;
  }

  group(page) {
    return (this.words[2 * page] >>> 8) & 0xff;
  }

  fill(page) {
    return (this.words[2 * page] >>> 16) & 0xff;
  }

  refCount(page) {
    return this.words[2 * page] >>> 24;
  }

  holder(page) {
    return this.words[2 * page + 1];
  }

  isShared(page) {
    return this.refCount(page) > 1;
  }

  /** Take over eight bytes each for pages from `first` on. */
  apply(first, bytes) {
    const told = new Uint32Array(bytes.buffer, bytes.byteOffset, bytes.byteLength >>> 2);
    const { words, counts } = this;
    const end = Math.min(told.length, words.length - 2 * first);
    for (let from = 0, to = 2 * first; from < end; from += 2, to += 2) {
      const next = told[from];
      const old = words[to];
      if (next === old && told[from + 1] === words[to + 1]) continue;
      counts[old & 0xff] -= 1;
      counts[next & 0xff] += 1;
      this.numShared += (next >>> 24 > 1 ? 1 : 0) - (old >>> 24 > 1 ? 1 : 0);
      words[to] = next;
      words[to + 1] = told[from + 1];
      const page = to >>> 1;
      if (this.#isChanged[page] === 0) {
        this.#isChanged[page] = 1;
        this.#changed[this.#numChanged++] = page;
      }
    }
  }

  /** The pages that changed since this was last asked; good until the next `apply`. */
  takeChanged() {
    const changed = this.#changed.subarray(0, this.#numChanged);
    for (const page of changed) this.#isChanged[page] = 0;
    this.#numChanged = 0;
    return changed;
  }

  /** The next page (`step` 1) or the one before (-1) that has the same holder; the page itself when it is the only one. */
  nextOfHolder(page, step) {
    const holder = this.holder(page);
    if (holder === 0) return page;
    let next = page;
    do {
      next += step;
      if (next > this.numPages) next = 1;
      if (next < 1) next = this.numPages;
    } while (this.holder(next) !== holder);
    return next;
  }
}

/** The bytes of base64 text. */
function decodeBase64(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let index = 0; index < binary.length; index += 1) bytes[index] = binary.charCodeAt(index);
  return bytes;
}
