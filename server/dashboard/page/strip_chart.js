// StripChart: some series of the last minutes on one time axis, now at the right. Knows how to draw points, not what they
// are of. Times without points are left blank.
"use strict";

const LARGEST_GAP = 3; // seconds between two points that are still one line
const BAR_SECONDS = 3;

class StripChart {
  /**
   * `series`: {kind: "area" | "line" | "bar", read: point => number | null, colour: palette => rgb}, areas stacked in order.
   * `describe(point, points)`: [class of its key or "", name, text] for each value that the caption tells.
   */
  constructor(canvas, caption, palette, { series, top = null, describe }) {
    Object.assign(this, { canvas, caption, palette, series, top, describe });
    canvas.addEventListener("pointermove", (event) => this.#look(event));
    canvas.addEventListener("pointerleave", () => this.#look(null));
  }

  #points = [];
  #seen = null; // the time under the pointer

  show(points) {
    this.#points = points;
    this.draw();
  }

  #look(event) {
    const box = this.canvas.getBoundingClientRect();
    const now = this.#points.at(-1)?.time ?? 0;
    this.#seen = event && now - SPAN * (1 - (event.clientX - box.left) / box.width);
    this.draw();
  }

  draw() {
    const { canvas } = this;
    const ratio = devicePixelRatio;
    const width = canvas.clientWidth;
    const height = canvas.clientHeight;
    if (width === 0) return;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
    }
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    const points = this.#points;
    const now = points.at(-1)?.time ?? 0;
    const top = this.top?.(points.at(-1)) || this.#nice(points, now);
    const frame = {
      context,
      x: (time) => width - ((now - time) / SPAN) * width,
      y: (value) => height - 1 - (value / top) * (height - 3),
      height,
    };
    this.#axis(frame, width, top);
    let floor = null;
    for (const one of this.series) {
      if (one.kind === "bar") this.#bars(frame, one, now);
      else floor = this.#curve(frame, one, one.kind === "area" ? floor : null) ?? floor;
    }
    this.#tell(frame, points);
  }

  /** The least of 1, 2, 5, 10, 20, ... that is above every value. */
  #nice(points, now) {
    let most = 0;
    for (const one of this.series) {
      if (one.kind === "bar") most = Math.max(most, ...this.#sums(one, now).values());
      else for (const point of points) most = Math.max(most, one.read(point) ?? 0);
    }
    const power = 10 ** Math.floor(Math.log10(Math.max(most, 1)));
    return [1, 2, 5, 10].find((step) => step * power >= most) * power;
  }

  #axis({ context, y, x, height }, width, top) {
    const { palette } = this;
    context.strokeStyle = css(palette.line);
    context.lineWidth = 1;
    context.beginPath();
    for (const value of [0, top / 2, top]) {
      const line = Math.round(y(value)) + 0.5;
      context.moveTo(0, line);
      context.lineTo(width, line);
    }
    const now = this.#points.at(-1)?.time ?? 0;
    for (let back = 60; back < SPAN; back += 60) {
      const line = Math.round(x(now - back)) + 0.5;
      context.moveTo(line, 0);
      context.lineTo(line, height);
    }
    context.stroke();
    context.fillStyle = css(palette.muted);
    context.font = `10px ${getComputedStyle(document.body).fontFamily}`;
    context.textBaseline = "top";
    this.#label = () => {
      context.fillStyle = css(palette.muted);
      context.fillText(Quantity.short(top), 2, 4);
    };
  }

  #label = () => {};

  /** Draw a line, with what is under it where it is an area; the values of an area, for the next to stand on. */
  #curve({ context, x, y }, one, floor) {
    const isArea = one.kind === "area";
    const values = this.#points.map((point, index) => {
      const value = one.read(point);
      return value === null ? null : value + (floor?.[index] ?? 0);
    });
    context.strokeStyle = css(one.colour(this.palette));
    context.fillStyle = css(one.colour(this.palette));
    context.lineWidth = 1.5;
    context.lineJoin = "round";
    for (const [first, last] of this.#pieces(values)) {
      context.beginPath();
      for (let index = first; index <= last; index += 1) context.lineTo(x(this.#points[index].time), y(values[index]));
      if (isArea) {
        for (let index = last; index >= first; index -= 1)
          context.lineTo(x(this.#points[index].time), y(floor?.[index] ?? 0));
        context.fill();
      } else context.stroke();
    }
    return isArea ? values : null;
  }

  /** Runs of points that belong together: first and last index of each. */
  #pieces(values) {
    const pieces = [];
    for (let index = 0; index < values.length; index += 1) {
      if (values[index] === null) continue;
      const piece = pieces.at(-1);
      const isNext = piece && piece[1] === index - 1;
      if (isNext && this.#points[index].time - this.#points[index - 1].time <= LARGEST_GAP) piece[1] = index;
      else pieces.push([index, index]);
    }
    return pieces;
  }

  /** What a series adds up to in each stretch of BAR_SECONDS, by the stretch's number. */
  #sums(one) {
    const sums = new Map();
    for (const point of this.#points) {
      const stretch = Math.floor(point.time / BAR_SECONDS);
      sums.set(stretch, (sums.get(stretch) ?? 0) + one.read(point));
    }
    return sums;
  }

  #bars({ context, x, y, height }, one) {
    context.fillStyle = css(one.colour(this.palette));
    for (const [stretch, sum] of this.#sums(one)) {
      if (sum === 0) continue;
      const left = x(stretch * BAR_SECONDS);
      const right = Math.min(x((stretch + 1) * BAR_SECONDS), this.canvas.clientWidth);
      context.fillRect(left, y(sum), Math.max(1, right - left - 1), height - 1 - y(sum));
    }
  }

  /** The caption and the text for who does not see it: of the time under the pointer, else of now. */
  #tell({ context, x, height }, points) {
    this.#label();
    if (points.length === 0) return;
    let point = points.at(-1);
    if (this.#seen !== null) {
      point = points.reduce((best, one) => (Math.abs(one.time - this.#seen) < Math.abs(best.time - this.#seen) ? one : best));
      context.fillStyle = css(this.palette.ink);
      context.fillRect(Math.round(x(point.time)), 0, 1, height);
    }
    const told = this.describe(point, points);
    this.caption.replaceChildren(
      ...told.map(([key, name, text]) => element("span", "", ...(key ? [element("i", `key ${key}`)] : []), `${name} `, element("b", "", text))),
    );
    const ago = Math.round(points.at(-1).time - point.time);
    if (this.#seen !== null && ago > 0) this.caption.append(element("span", "ago", `${ago} s ago`));
    this.canvas.setAttribute("aria-label", told.map(([, name, text]) => `${name} ${text}`).join(", "));
  }
}
