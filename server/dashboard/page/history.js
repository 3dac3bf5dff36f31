// History: the statistics of the last minutes, and the rates between them.
//
// Counters begin anew when the engine does; no rate is made across that.
"use strict";

const SPAN = 180; // seconds
const COUNTERS = ["prompt_tokens", "cached_tokens", "generation_tokens", "preemptions"];

class History {
  points = [];
  #life = 0;

  add(stats) {
    const last = this.points.at(-1);
    if (last && stats.time <= last.stats.time) return;
    if (last && COUNTERS.some((name) => stats[name] < last.stats[name])) this.#life += 1;
    const point = { time: stats.time, stats, life: this.#life, outputRate: null, promptRate: null, preempted: 0 };
    if (last && last.life === point.life) point.preempted = stats.preemptions - last.stats.preemptions;
    this.points.push(point);
    point.outputRate = this.rate("generation_tokens", 2);
    point.promptRate = this.rate("prompt_tokens", 2);
    while (this.points[0].time < stats.time - SPAN) this.points.shift();
  }

  /** The latest point, and the one about so many seconds before it; null where there are no two. */
  #ends(seconds) {
    const last = this.points.at(-1);
    let first = null;
    for (let index = this.points.length - 2; index >= 0; index -= 1) {
      if (this.points[index].life !== last.life) break;
      first = this.points[index];
      if (last.time - first.time >= seconds) break;
    }
    return first && [first, last];
  }

  /** Growth of a counter per second, over about so many seconds. */
  rate(counter, seconds) {
    const ends = this.#ends(seconds);
    return ends && (ends[1].stats[counter] - ends[0].stats[counter]) / (ends[1].time - ends[0].time);
  }

  /** Cached tokens of all prompt tokens in the last so many seconds, else since the start; null before any prompt. */
  hitRatio(seconds) {
    const last = this.points.at(-1).stats;
    const ends = this.#ends(seconds);
    const first = ends ? ends[0].stats : last;
    const recent = last.prompt_tokens - first.prompt_tokens;
    if (recent > 0) return { ratio: (last.cached_tokens - first.cached_tokens) / recent, isRecent: true };
    return last.prompt_tokens > 0 ? { ratio: last.cached_tokens / last.prompt_tokens, isRecent: false } : null;
  }
}
