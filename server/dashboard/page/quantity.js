// Quantities as a person reads them: counts, shares, bytes, seconds, runs of page numbers.
"use strict";

const NONE = "–";

const Quantity = {
  count(value) {
    return Math.round(value).toLocaleString("en-US");
  },

  /** A count that fits a narrow column: 12.3k, 4.56M. */
  short(value) {
    if (value < 10_000) return Quantity.count(value);
    if (value < 999_500) return `${(value / 1e3).toPrecision(3)}k`;
    return `${(value / 1e6).toPrecision(3)}M`;
  },

  /** A count and its noun, with an s where there is not just one. */
  of(value, noun) {
    return `${Quantity.count(value)} ${noun}${value === 1 ? "" : "s"}`;
  },

  share(ratio) {
    const percent = 100 * ratio;
    return `${percent > 0 && percent < 9.95 ? percent.toFixed(1) : Math.round(percent)} %`;
  },

  rate(perSecond) {
    return perSecond < 9.95 && perSecond > 0 ? perSecond.toFixed(1) : Quantity.count(perSecond);
  },

  bytes(bytes) {
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let unit = 0;
    while (bytes >= 1000 && unit < units.length - 1) {
      bytes /= 1024;
      unit += 1;
    }
    return `${bytes >= 100 || unit === 0 ? Math.round(bytes) : bytes.toPrecision(3)} ${units[unit]}`;
  },

  seconds(seconds) {
    if (seconds < 1) return `${Math.round(1000 * seconds)} ms`;
    if (seconds < 10) return `${seconds.toFixed(1)} s`;
    if (seconds < 120) return `${Math.round(seconds)} s`;
    const minutes = Math.round(seconds / 60);
    if (minutes < 120) return `${minutes} min`;
    return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
  },

  /** Page numbers in runs, in their order: [[first, last], ...]. */
  runs(pages) {
    const runs = [];
    for (const page of pages) {
      const last = runs[runs.length - 1];
      if (last && page === last[1] + 1) last[1] = page;
      else runs.push([page, page]);
    }
    return runs;
  },
};

/** Why a request waits, in a few words. */
const WAIT_REASONS = {
  pages: "too few pages",
  sequences: "as many run as may",
  tokens: "the step is full",
  preemption: "running ones lack pages",
  behind: "others go first",
  grammar: "its grammar is compiled",
};
