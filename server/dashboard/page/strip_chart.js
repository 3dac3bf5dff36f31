// StripChart: some series of the last minutes on one time axis, now at the right. Knows how to draw points, not what they
// are of. Times without points are left blank.
"use strict";

const LARGEST_GAP = 3; // seconds between two points that are still one line
const BAR_SECONDS = 3;
const FOOT = 14; // CSS pixels for times
const LANE_GAP = 8;

class StripChart {
  /**
   * `lanes`, from top to bottom, each with a scale of its own: {series, top: points => its largest value, where not any}.
   * `series`: {kind: "area" | "line" | "bar", read: point => number | null, colour: name in the palette}, areas stacked.
   * `describe(point, points)`: [class of its key or "", name, text] for each value that the caption tells.
   */
  constructor(canvas, caption, palette, { lanes, describe }) {
    Object.assign(this, { canvas, caption, palette, lanes, describe });
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
    this.#seen = event && this.#now - SPAN * (1 - (event.clientX - box.left) / box.width);
    this.draw();
  }

  get #now() {
    return this.#points.at(-1)?.time ?? 0;
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
    context.font = `10px ${getComputedStyle(document.body).fontFamily}`;
    const bottom = height - FOOT;
    const x = (time) => width - ((this.#now - time) / SPAN) * width;
    this.#times(context, width, bottom, x);
    const share = (bottom - LANE_GAP * (this.lanes.length - 1)) / this.lanes.length;
    for (const [index, lane] of this.lanes.entries()) {
      const floor = (index + 1) * share + index * LANE_GAP - 1;
      const top = lane.top?.(this.#points) ?? this.#nice(lane);
      this.#lane({ context, width, x, floor, y: (value) => floor - (value / top) * (share - 2) }, lane, top);
    }
    this.#tell(context, x, bottom);
  }

  #times(context, width, bottom, x) {
    context.strokeStyle = css(this.palette.line);
    context.fillStyle = css(this.palette.muted);
    context.lineWidth = 1;
    context.textBaseline = "bottom";
    context.beginPath();
    for (let back = 60; back < SPAN; back += 60) {
      const line = Math.round(x(this.#now - back)) + 0.5;
      context.moveTo(line, 0);
      context.lineTo(line, bottom);
      context.textAlign = "center";
      context.fillText(`−${back / 60} min`, line, bottom + FOOT);
    }
    context.stroke();
    context.textAlign = "right";
    context.fillText("now", width, bottom + FOOT);
  }

  #lane(frame, lane, top) {
    const { context, width, y } = frame;
    context.strokeStyle = css(this.palette.line);
    context.lineWidth = 1;
    context.beginPath();
    for (const value of [0, top]) {
      const line = Math.round(y(value)) + 0.5;
      context.moveTo(0, line);
      context.lineTo(width, line);
    }
    context.stroke();
    let under = null;
    for (const one of lane.series) {
      if (one.kind === "bar") this.#bars(frame, one);
      else under = this.#curve(frame, one, one.kind === "area" ? under : null) ?? under;
    }
    context.strokeStyle = css(this.palette.panel);
    context.fillStyle = css(this.palette.muted);
    context.lineWidth = 3;
    context.textAlign = "left";
    context.textBaseline = "top";
    context.strokeText(Quantity.short(top), 1, y(top) + 3);
    context.fillText(Quantity.short(top), 1, y(top) + 3);
  }

  /** The least of 1, 2, 5, 10, 20, ... that no value of a lane is above. */
  #nice(lane) {
    let most = 1;
    for (const one of lane.series) {
      const values = one.kind === "bar" ? this.#sums(one).values() : this.#points.map(one.read);
      for (const value of values) most = Math.max(most, value ?? 0);
    }
    const power = 10 ** Math.floor(Math.log10(most));
    return [1, 2, 5, 10].find((step) => step * power >= most) * power;
  }

  /** Draw a line, with what is under it where it is an area; the values of an area, for the next to stand on. */
  #curve({ context, x, y }, one, under) {
    const isArea = one.kind === "area";
    const values = this.#points.map((point, index) => {
      const value = one.read(point);
      return value === null ? null : value + (under?.[index] ?? 0);
    });
    context.strokeStyle = context.fillStyle = css(this.palette[one.colour]);
    context.lineWidth = 1.5;
    context.lineJoin = "round";
    for (const [first, last] of this.#pieces(values)) {
      context.beginPath();
      for (let index = first; index <= last; index += 1) context.lineTo(x(this.#points[index].time), y(values[index]));
      if (isArea) {
        for (let index = last; index >= first; index -= 1)
          context.lineTo(x(this.#points[index].time), y(under?.[index] ?? 0));
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

  #bars({ context, width, x, y, floor }, one) {
    context.fillStyle = css(this.palette[one.colour]);
    for (const [stretch, sum] of this.#sums(one)) {
      if (sum === 0) continue;
      const left = x(stretch * BAR_SECONDS);
      const right = Math.min(x((stretch + 1) * BAR_SECONDS), width);
      context.fillRect(left, y(sum), Math.max(2, right - left - 1), floor - y(sum));
    }
  }

  /** The caption and the text for who does not see it: of the time under the pointer, else of now. */
  #tell(context, x, bottom) {
    const points = this.#points;
    if (points.length === 0) return;
    const distance = (point) => Math.abs(point.time - this.#seen);
    let point = points.at(-1);
    if (this.#seen !== null) {
      point = points.reduce((best, one) => (distance(one) < distance(best) ? one : best));
      context.fillStyle = css(this.palette.ink);
      context.fillRect(Math.min(Math.round(x(point.time)), this.canvas.clientWidth - 1), 0, 1, bottom);
    }
    const told = this.describe(point, points);
    const parts = told.map(([key, name, text]) => {
      const marks = key ? [element("i", `key ${key}`)] : [];
      return element("span", "", ...marks, `${name} `, element("b", "", text));
    });
    this.caption.replaceChildren(...parts);
    const ago = Math.round(this.#now - point.time);
    if (this.#seen !== null && ago > 0) this.caption.append(element("span", "", `${ago} s ago`));
    this.canvas.setAttribute("aria-label", told.map(([, name, text]) => `${name} ${text}`).join(", "));
  }
}
